"""GitLab's Code Quality report, shown in merge requests."""

import json
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from dsconfig.report.diagnostic import Diagnostic, Severity
from dsconfig.report.render.terminal import Look
from dsconfig.report.report import FileReport

SEVERITIES = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.INFO: "info"}


def render(files: Sequence[FileReport], look: Look) -> str:
    seen: Counter[str] = Counter()
    found = [
        _entry(file.file, finding, seen) for file in files for finding in file.report.diagnostics
    ]
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _entry(file: str, finding: Diagnostic, seen: "Counter[str]") -> dict[str, Any]:
    text = finding.message if finding.help is None else f"{finding.message}; {finding.help}"
    return {
        "description": f"{finding.code}: {text}",
        "check_name": finding.name,
        "fingerprint": _fingerprint(file, finding, seen),
        "severity": SEVERITIES[finding.severity],
        "location": {
            "path": file,
            "lines": {"begin": finding.range.start.line if finding.range is not None else 1},
        },
    }


def _fingerprint(file: str, finding: Diagnostic, seen: "Counter[str]") -> str:
    """Return what identifies a finding in two runs: without its line, which edits above move."""
    identity = "\n".join((file, finding.code, finding.pointer, finding.message))
    seen[identity] += 1
    return sha256(f"{identity}\n{seen[identity]}".encode("utf-8", "surrogatepass")).hexdigest()

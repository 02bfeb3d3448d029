"""JSON output. The shape is stable; fields may be added, and readers must accept them."""

import json
from collections.abc import Sequence
from typing import Any

from dsconfig.report.diagnostic import Diagnostic, Range
from dsconfig.report.render.terminal import Look
from dsconfig.report.report import FileReport

FORMAT_VERSION = "2.0"


def render(files: Sequence[FileReport], look: Look) -> str:
    return json.dumps(as_data(files), indent=2) + "\n"


def as_data(files: Sequence[FileReport]) -> dict[str, Any]:
    """Return the report as plain data."""
    return {
        "format_version": FORMAT_VERSION,
        "files": [
            {
                "file": file.file,
                "valid": file.report.ok,
                **_target(file),
                "diagnostics": [diagnostic_data(found) for found in file.report.diagnostics],
            }
            for file in files
        ],
        "summary": {
            "files": len(files),
            "errors": sum(len(file.report.errors) for file in files),
            "warnings": sum(len(file.report.warnings) for file in files),
            "notes": sum(len(file.report.notes) for file in files),
        },
    }


def _target(file: FileReport) -> dict[str, Any]:
    """Return the target program and how it was determined."""
    target = file.target
    if target is None:
        return {}
    return {
        "runtime": target.runtime,
        "release": target.release,
        "inferred_from": target.inferred_from,
        "ranks": target.ranks,
    }


def diagnostic_data(found: Diagnostic) -> dict[str, Any]:
    """Return one finding as plain data."""
    return {
        "code": found.code,
        "name": found.name,
        "severity": str(found.severity),
        "effect": str(found.effect),
        "late": found.late,
        "runtimes": list(found.runtimes),
        "pointer": found.pointer,
        "message": found.message,
        "help": found.help,
        "url": found.url,
        "range": _range(found.range),
        "fix": None
        if found.fix is None
        else {
            "applicability": str(found.fix.applicability),
            "edits": [
                {"range": _range(edit.range), "content": edit.content} for edit in found.fix.edits
            ],
        },
    }


def _range(range_: Range | None) -> dict[str, Any] | None:
    if range_ is None:
        return None
    return {"start": range_.start._asdict(), "end": range_.end._asdict()}

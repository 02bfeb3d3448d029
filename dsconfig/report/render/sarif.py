"""SARIF 2.1.0, for code scanning services."""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dsconfig.report import rule_pages, writers
from dsconfig.report.diagnostic import Diagnostic, Range, Severity
from dsconfig.report.render.terminal import Look
from dsconfig.report.report import FileReport

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(files: Sequence[FileReport], look: Look) -> str:
    return json.dumps(as_data(files), indent=2) + "\n"


def as_data(files: Sequence[FileReport]) -> dict[str, Any]:
    """Return the log as plain data: one run, one result per finding."""
    from dsconfig import __version__

    everything = [(file.file, finding) for file in files for finding in file.report.diagnostics]
    rules = _rules(finding for _, finding in everything)
    index = {rule["id"]: place for place, rule in enumerate(rules)}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "dsconfig", "version": __version__, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "artifacts": [{"location": {"uri": _uri(file.file)}} for file in files],
                "results": [_result(file, finding, index) for file, finding in everything],
            }
        ],
    }


def _rules(findings: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    """Return the rules of the findings, each with its full page, readable without a network."""
    by_code = {diagnostic.code: diagnostic for diagnostic in findings}
    return [_rule(by_code[code]) for code in sorted(by_code)]


def _rule(finding: Diagnostic) -> dict[str, Any]:
    page = rule_pages.text(finding.code)
    title = page.partition("\n")[0].partition(": ")[2] or finding.name.replace("-", " ")
    rule: dict[str, Any] = {
        "id": finding.code,
        "name": finding.name,
        "shortDescription": {"text": title},
        "helpUri": finding.url,
        "defaultConfiguration": {"level": LEVELS[finding.severity]},
    }
    if page:
        rule["help"] = {"text": page, "markdown": page}
    return rule


def _result(file: str, finding: Diagnostic, index: dict[str, int]) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": _uri(file)}}
    if finding.range is not None:
        location["region"] = _region(finding.range)
    text = finding.message if finding.help is None else f"{finding.message}\n{finding.help}"
    # Stable when the lines around a finding move.
    identity = f"{finding.code} {finding.pointer}".encode(errors="backslashreplace")
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "level": LEVELS[finding.severity],
        "message": {"text": writers.sarif(text)},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"dsconfig/v1": sha256(identity).hexdigest()[:16]},
        "properties": {
            "effect": str(finding.effect),
            "late": finding.late,
            "runtimes": list(finding.runtimes),
            "pointer": finding.pointer,
        },
    }
    if finding.fix is not None:
        change = {
            "artifactLocation": {"uri": _uri(file)},
            "replacements": [
                {"deletedRegion": _region(edit.range), "insertedContent": {"text": edit.content}}
                for edit in finding.fix.edits
            ],
        }
        about = writers.sarif(f"{finding.fix.applicability} fix for {finding.name}")
        result["fixes"] = [{"description": {"text": about}, "artifactChanges": [change]}]
    return result


def _region(place: Range) -> dict[str, int]:
    return {
        "startLine": place.start.line,
        "startColumn": place.start.column,
        "endLine": place.end.line,
        "endColumn": place.end.column,
    }


def _uri(file: str) -> str:
    """Return a relative reference; an absolute path becomes a file URI."""
    path = Path(file)
    if path.is_absolute():
        return path.as_uri()
    return quote(path.as_posix(), errors="backslashreplace")

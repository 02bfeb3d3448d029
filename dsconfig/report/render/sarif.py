"""SARIF 2.1.0, for code scanning services."""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dsconfig.report import rule_pages
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

    everything = [(file.file, found) for file in files for found in file.report.diagnostics]
    rules = _rules(found for _, found in everything)
    index = {rule["id"]: place for place, rule in enumerate(rules)}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "dsconfig", "version": __version__, "rules": rules}},
                "columnKind": "unicodeCodePoints",
                "artifacts": [{"location": {"uri": _uri(file.file)}} for file in files],
                "results": [_result(file, found, index) for file, found in everything],
            }
        ],
    }


def _rules(found: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    """Return the rules of the findings, each with its full page, readable without a network."""
    by_code = {diagnostic.code: diagnostic for diagnostic in found}
    return [_rule(by_code[code]) for code in sorted(by_code)]


def _rule(found: Diagnostic) -> dict[str, Any]:
    page = rule_pages.text(found.code)
    title = page.partition("\n")[0].partition(": ")[2] or found.name.replace("-", " ")
    rule: dict[str, Any] = {
        "id": found.code,
        "name": found.name,
        "shortDescription": {"text": title},
        "helpUri": found.url,
        "defaultConfiguration": {"level": LEVELS[found.severity]},
    }
    if page:
        rule["help"] = {"text": page, "markdown": page}
    return rule


def _result(file: str, found: Diagnostic, index: dict[str, int]) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": _uri(file)}}
    if found.range is not None:
        location["region"] = _region(found.range)
    text = found.message if found.help is None else f"{found.message}\n{found.help}"
    # Stable when the lines around a finding move.
    identity = f"{found.code} {found.pointer}".encode(errors="backslashreplace")
    result: dict[str, Any] = {
        "ruleId": found.code,
        "ruleIndex": index[found.code],
        "level": LEVELS[found.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"dsconfig/v1": sha256(identity).hexdigest()[:16]},
        "properties": {
            "effect": str(found.effect),
            "late": found.late,
            "runtimes": list(found.runtimes),
            "pointer": found.pointer,
        },
    }
    if found.fix is not None:
        change = {
            "artifactLocation": {"uri": _uri(file)},
            "replacements": [
                {"deletedRegion": _region(edit.range), "insertedContent": {"text": edit.content}}
                for edit in found.fix.edits
            ],
        }
        about = f"{found.fix.applicability} fix for {found.name}"
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

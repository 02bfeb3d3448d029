"""The stable shape other programs build on. New fields may come; readers must accept them."""

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
    """The report as plain data."""
    return {
        "format_version": FORMAT_VERSION,
        "files": [
            {
                "file": file.file,
                "valid": file.report.ok,
                **_judged_for(file),
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


def _judged_for(file: FileReport) -> dict[str, Any]:
    """Who was taken to run the file, where that was asked."""
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
    """One finding as plain data."""
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


def _range(place: Range | None) -> dict[str, Any] | None:
    if place is None:
        return None
    return {"start": place.start._asdict(), "end": place.end._asdict()}

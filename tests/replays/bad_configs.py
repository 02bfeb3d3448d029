"""Check invalid configs for DeepSpeed 0.19.8 on one rank.

A row agrees when one of its pointers (``match: any``) or each (``all``) has a finding of at least
the expected severity; ``ok`` expects neither error nor warning. Only rows whose basis is ``firm``
count, and ``needs-fact`` rows with facts. ``resolve`` must refuse what the parser refused, and
nothing that DeepSpeed trained.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dsconfig
from dsconfig import Severity
from replays import Case
from replays._entry_points import resolve_refuses

RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.ERROR: 2}
LEAST = {"error": 2, "warning": 1, "error-or-warning": 1}


def replay(path: Path) -> Iterator[Case]:
    for row in json.loads(path.read_text()):
        counts = row["basis"] == "firm" or (row["basis"] == "needs-fact" and row.get("facts"))
        if counts:
            yield _case(row)


def _case(row: dict[str, Any]) -> Case:
    report = dsconfig.validate(
        _source(row),
        _facts(row),
        runtime=row["context"]["runtime"],
        version=row["context"]["deepspeed_version"],
    )
    serious = [finding for finding in report.diagnostics if RANK[finding.severity] > 0]
    got = sorted({f"{finding.code} {finding.severity} {finding.pointer}" for finding in serious})
    expected = row["expect"]
    if expected == "ok":
        agrees = not serious
    else:
        pointers = {
            finding.pointer for finding in serious if RANK[finding.severity] >= LEAST[expected]
        }
        matches = [_matches(pointer, pointers) for pointer in row["pointers"]]
        agrees = all(matches) if row["match"] == "all" else any(matches)
    resolve_agrees = _resolve_agrees(row)
    got = got if resolve_agrees else [*got, "resolve disagrees"]
    return Case(row["name"], f"{expected} at {row['pointers']}", got, agrees and resolve_agrees)


def _resolve_agrees(row: dict[str, Any]) -> bool:
    version = row["context"]["deepspeed_version"]
    refused = resolve_refuses(_source(row), _facts(row), version)
    if row["failed_at"] == "parse":
        return refused
    return not refused or row["failed_at"] is not None


def _matches(pointer: str, pointers: set[str]) -> bool:
    return pointer in pointers


def _facts(row: dict[str, Any]) -> dsconfig.Facts:
    facts = {"world_size": row["context"]["world_size"]} | (row.get("facts") or {})
    device = facts.pop("device", None)
    if device == "cpu":
        return dsconfig.Facts(device=dsconfig.DeviceFacts(name="cpu", kind="cpu"), **facts)
    return dsconfig.Facts(**facts)


def _source(row: dict[str, Any]) -> Any:
    if row["input_kind"] == "file_text":
        from dsconfig.source.from_text import document_from_text

        text = row["config"]
        mark = text.startswith("\ufeff")
        return document_from_text(text.removeprefix("\ufeff"), row["name"], has_bom=mark)
    return _decoded(row["config"])


def _decoded(value: Any) -> Any:
    """Decode ``{"__float__": "inf"}``, used for floats that JSON lacks."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: _decoded(item) for key, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value

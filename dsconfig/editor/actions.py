"""What an editor offers to do at a place: apply a fix, write the value of an "auto", explain."""

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from dsconfig.editor.cursor import entry_at
from dsconfig.editor.open_file import OpenFile
from dsconfig.project import fixing
from dsconfig.report import Applicability, Diagnostic, Edit, Position, Range
from dsconfig.runtimes.base import AUTO
from dsconfig.source.edit import replace_value
from dsconfig.source.pointer import dotted, lookup
from dsconfig.source.positions import LineIndex


class ActionKind(StrEnum):
    FIX = "fix"
    """Removes a finding."""
    REWRITE = "rewrite"
    FIX_ALL = "fix all"
    EXPLAIN = "explain"


class Action(NamedTuple):
    """Edits of the file, or a rule to explain. ``is_preferred``: safe to apply without review."""

    title: str
    kind: ActionKind
    edits: tuple[Edit, ...] = ()
    finding: Diagnostic | None = None
    is_preferred: bool = False


def actions(file: OpenFile, place: Range) -> list[Action]:
    """Return what can be done about the findings and the "auto" in a range."""
    found = [finding for finding in file.checked.report.diagnostics if _touches(finding, place)]
    fixes = [action for finding in found for action in _fixes(finding)]
    explained = [
        Action(f"Explain {each.code} ({each.name})", ActionKind.EXPLAIN, (), each) for each in found
    ]
    return [*fixes, *_resolved(file, place.start), *explained]


def fix_all(file: OpenFile) -> list[Action]:
    """Return one action that applies every safe fix, or none if there is nothing to fix."""
    fixed = fixing.fix(file.document, file.validator, unsafe=False)
    before, after = file.document.text or "", fixed.document.text or ""
    if before == after:
        return []
    whole = LineIndex(before).range(0, len(before))
    return [Action("Fix everything that is safe to fix", ActionKind.FIX_ALL, (Edit(whole, after),))]


def _touches(finding: Diagnostic, place: Range) -> bool:
    if finding.range is None or finding.file is not None:
        return False
    return finding.range.start <= place.end and place.start <= finding.range.end


def _fixes(finding: Diagnostic) -> Iterator[Action]:
    if finding.fix is not None:
        is_safe = finding.fix.applicability is Applicability.SAFE
        review = "" if is_safe else " (changes what is trained)"
        title = f"{finding.code}: {finding.help or 'fix it'}{review}"
        yield Action(title, ActionKind.FIX, finding.fix.edits, finding, is_preferred=is_safe)


def _resolved(file: OpenFile, position: Position) -> Iterator[Action]:
    pointer = entry_at(file.document, position)
    if pointer is None or lookup(file.document.value, pointer) != AUTO:
        return
    entry = file.filled(pointer)
    edits = replace_value(file.document, pointer, entry.value) if entry is not None else ()
    if entry is not None and edits:
        title = f'Replace "auto" of {dotted(pointer)} with {json.dumps(entry.value)}: {entry.rule}'
        yield Action(title, ActionKind.REWRITE, edits)

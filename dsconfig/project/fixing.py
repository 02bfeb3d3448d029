"""Apply the fixes of a document's findings until none is left."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsconfig import applicable_fixes
from dsconfig.project.validator import Validator
from dsconfig.report import Applicability, Diagnostic, Report
from dsconfig.source import Document
from dsconfig.source.edit import EDITABLE
from dsconfig.source.rewrite import texts_for_diff

BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class Fixed:
    """A document after fixing, its report, and the number of fixes applied."""

    document: Document
    report: Report
    count: int = 0


def fix(document: Document, validator: Validator, *, unsafe: bool) -> Fixed:
    """Apply fixes repeatedly until none is left.

    A fix that adds a finding, or makes one more severe, is not applied.
    """
    state = Fixed(document, validator.validate(document))
    if document.text is None or document.format not in EDITABLE or validator.overrides:
        return state
    seen = {document.text}
    while True:
        fixable = _fixable(state.report, unsafe)
        better = _apply(state, fixable, validator) or _apply_harmless(state, fixable, validator)
        if better is None or better.document.text in seen:
            return state
        state = better
        seen.add(state.document.text or "")


def _fixable(report: Report, unsafe: bool) -> list[Diagnostic]:
    return [
        finding
        for finding in report.diagnostics
        if finding.fix is not None and (unsafe or finding.fix.applicability is Applicability.SAFE)
    ]


def _apply_harmless(state: Fixed, fixable: list[Diagnostic], validator: Validator) -> Fixed | None:
    """Apply the fixes that are harmless on their own, together or else only the first."""
    if len(fixable) < 2:
        return None
    single = ((finding, _apply(state, [finding], validator)) for finding in fixable)
    helpful = [(finding, better) for finding, better in single if better is not None]
    if not helpful:
        return None
    return _apply(state, [finding for finding, _ in helpful], validator) or helpful[0][1]


def _apply(state: Fixed, findings: Sequence[Diagnostic], validator: Validator) -> Fixed | None:
    """Apply the fixes of some findings, if that adds none."""
    found = applicable_fixes.apply(state.document, state.report, findings, validator.validate)
    return found and Fixed(found.document, found.report, state.count + len(found.fixed))


def unified_diff(before: Document, after: Document) -> str:
    """Return the change in the format of ``diff -u``, indented for a file of one long line."""
    from difflib import unified_diff as differences

    old, new, is_indented = texts_for_diff(before, after)
    suffix = " (indented)" if is_indented else ""
    lines = differences(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        f"{before.name}{suffix}",
        f"{after.name}{suffix}",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )

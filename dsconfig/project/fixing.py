"""Apply the fixes of a document's findings until none is left."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dsconfig.project.validator import Validator
from dsconfig.report import Applicability, Diagnostic, Report
from dsconfig.source import Document
from dsconfig.source.edit import EDITABLE, apply_fixes
from dsconfig.source.from_text import document_from_text
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

    A fix that adds a finding, or makes one more severe, is not applied: see :func:`_harms`.
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
    """Apply the fixes of some findings; return None if nothing changes or a finding is added.

    Two fixes that are correct on their own can conflict: both may write the same key.
    """
    before = state.document
    fixes = [finding.fix for finding in findings if finding.fix is not None]
    text, count = apply_fixes(before.text or "", fixes)
    if text == before.text:
        return None
    read = document_from_text(text, before.name, has_bom=before.has_bom)
    report = validator.validate(read)
    less_readable = _reader_codes(read) - _reader_codes(before)
    broken = read.is_broken > before.is_broken
    # Fixing a syntax error may reveal findings that it suppressed.
    harmed = not before.is_broken and _harms(state.report, report, findings)
    if broken or less_readable or harmed:
        return None
    return Fixed(read, report, state.count + count)


def _harms(before: Report, after: Report, fixed: Sequence[Diagnostic]) -> bool:
    """Return whether a report has a finding that the previous one does not have.

    A finding may move with its key, so pointers are compared only for the rules whose findings were
    fixed: those may not reappear elsewhere.
    """
    codes = {finding.code for finding in fixed}
    return bool(_counts(after, codes) - _counts(before, codes))


def _counts(report: Report, codes: set[str]) -> Counter[tuple[str, ...]]:
    """Count findings by code, effect and program, and by pointer for some codes."""
    return Counter(
        (finding.code, finding.effect, program, finding.pointer if finding.code in codes else "")
        for finding in report.diagnostics
        for program in finding.runtimes or ("",)
    )


def _reader_codes(document: Document) -> Counter[str]:
    """Count the reader's findings by code."""
    return Counter(finding.code for finding in document.diagnostics)


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

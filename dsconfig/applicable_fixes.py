"""Which fixes of a document can be applied: each removes its finding and adds none."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Applicability, Diagnostic, Effect, Report
from dsconfig.source import edit
from dsconfig.source.document import Document

with lazy_imports():
    from dsconfig.source.from_text import document_from_text

ABOUT_THE_SCRIPT = frozenset({"DSC613"})
"""Notes about the script: a fix that adds one changes what the script has to pass."""
MOST_TRIED = 24
"""Groups of fixes that are tried: halves of a group that cannot be applied together."""


class Applied(NamedTuple):
    """A document with the fixes of some findings, and its report."""

    document: Document
    report: Report
    fixed: list[Diagnostic]


def apply(
    document: Document,
    report: Report,
    findings: Iterable[Diagnostic],
    check: Callable[[Document], Report],
) -> Applied | None:
    """Apply the compatible fixes of some findings; return None unless these are gone and no other
    is added.

    Two fixes that are correct on their own can conflict: both may write the same key.
    """
    by_fix = {id(finding.fix): finding for finding in findings}
    chosen = edit.compatible(each.fix for each in by_fix.values() if each.fix is not None)
    text, _ = edit.apply_fixes(document.text or "", chosen)
    if text == document.text:
        return None
    read = document_from_text(text, document.name, has_bom=document.has_bom)
    if read.is_broken > document.is_broken or _reader_codes(read) - _reader_codes(document):
        return None
    after, fixed = check(read), [by_fix[id(fix)] for fix in chosen]
    # Fixing a syntax error may reveal findings that it suppressed.
    harmed = not document.is_broken and _harms(report, after, fixed)
    return None if harmed else Applied(read, after, fixed)


def with_applicable_fixes(
    document: Document, report: Report, check: Callable[[Document], Report]
) -> Report:
    """Return the report without the fixes that cannot be applied."""
    fixable = [finding for finding in report.diagnostics if finding.fix is not None]
    if not fixable or document.text is None or document.format not in edit.EDITABLE:
        return report
    applicable: set[int] = set()
    attempts = 0

    def try_together(group: list[Diagnostic]) -> None:
        nonlocal attempts
        if not group or attempts >= MOST_TRIED:
            return
        attempts += 1
        found = apply(document, report, group, check)
        if found is not None:
            done = set(map(id, found.fixed))
            applicable.update(done)
            try_together([each for each in group if id(each) not in done])
        elif len(group) > 1:
            half = len(group) // 2
            try_together(group[:half])
            try_together(group[half:])

    for applicability in Applicability:
        try_together(
            [each for each in fixable if each.fix and each.fix.applicability is applicability]
        )
    return Report(
        tuple(
            each if each.fix is None or id(each) in applicable else each._replace(fix=None)
            for each in report.diagnostics
        )
    )


def _harms(before: Report, after: Report, fixed: Sequence[Diagnostic]) -> bool:
    """Return whether a report still has a finding that was fixed, or one that the previous report
    does not have.

    A finding may move with its key, so pointers are compared only for the rules whose findings were
    fixed: those may not reappear elsewhere.
    """
    codes = {finding.code for finding in fixed}
    now = _counts(after.diagnostics, codes)
    expected = _counts(before.diagnostics, codes)
    expected.subtract(_counts(fixed, codes))
    return any(count > expected[finding] for finding, count in now.items())


def _counts(findings: Iterable[Diagnostic], codes: set[str]) -> Counter[tuple[str, ...]]:
    """Count findings by code, program and each effect that is at most as severe, and by pointer for
    some codes."""
    effects = list(Effect)
    return Counter(
        (finding.code, effect, program, finding.pointer if finding.code in codes else "")
        for finding in findings
        if finding.code not in ABOUT_THE_SCRIPT
        for program in finding.runtimes or ("",)
        for effect in effects[effects.index(finding.effect) :]
    )


def _reader_codes(document: Document) -> Counter[str]:
    """Count the reader's findings by code."""
    return Counter(finding.code for finding in document.diagnostics)

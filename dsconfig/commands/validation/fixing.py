"""``--fix``, ``--unsafe-fixes`` and ``--diff``: apply fixes until none is left."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsconfig.commands import writing
from dsconfig.commands.validation.output import Output
from dsconfig.commands.validation.targets import STDIN, Target
from dsconfig.commands.validation.validator import Validator
from dsconfig.report import Applicability, Diagnostic, FileReport, Report
from dsconfig.report.sizes import counted
from dsconfig.source import Document
from dsconfig.source.edit import EDITABLE, apply_fixes
from dsconfig.source.from_text import document_from_text

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
        found
        for found in report.diagnostics
        if found.fix is not None and (unsafe or found.fix.applicability is Applicability.SAFE)
    ]


def _apply_harmless(state: Fixed, fixable: list[Diagnostic], validator: Validator) -> Fixed | None:
    """Apply the fixes that are harmless on their own, together or else only the first."""
    if len(fixable) < 2:
        return None
    single = ((found, _apply(state, [found], validator)) for found in fixable)
    helpful = [(found, better) for found, better in single if better is not None]
    if not helpful:
        return None
    return _apply(state, [found for found, _ in helpful], validator) or helpful[0][1]


def _apply(state: Fixed, findings: Sequence[Diagnostic], validator: Validator) -> Fixed | None:
    """Apply the fixes of some findings; return None if nothing changes or a finding is added.

    Two fixes that are correct on their own can conflict: both may write the same key.
    """
    before = state.document
    fixes = [found.fix for found in findings if found.fix is not None]
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
    codes = {found.code for found in fixed}
    return bool(_counts(after, codes) - _counts(before, codes))


def _counts(report: Report, codes: set[str]) -> Counter[tuple[str, ...]]:
    """Count findings by code, effect and program, and by pointer for some codes."""
    return Counter(
        (found.code, found.effect, program, found.pointer if found.code in codes else "")
        for found in report.diagnostics
        for program in found.runtimes or ("",)
    )


def _reader_codes(document: Document) -> Counter[str]:
    """Count the reader's findings by code."""
    return Counter(found.code for found in document.diagnostics)


def unified_diff(before: Document, after: Document) -> str:
    """Return the change in the format of ``diff -u``."""
    from difflib import unified_diff as differences

    old = (before.text or "").splitlines(keepends=True)
    new = (after.text or "").splitlines(keepends=True)
    lines = differences(old, new, before.name, after.name)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def repair(
    chosen: Sequence[Target], validator: Validator, output: Output, *, unsafe: bool, dry: bool
) -> tuple[list[FileReport], bool]:
    """Fix every target, or print the differences if ``dry``.

    Returns the remaining reports, and whether anything was (or would be) changed. The fixed text of
    standard input is written to stdout, and findings to stderr.
    """
    reports: list[FileReport] = []
    fixes = files = 0
    to_stderr = False
    for target in chosen:
        own = validator.for_file(target.name)
        before = own.read(target)
        own = own.with_program(before, target.source)
        after = fix(before, own, unsafe=unsafe)
        reports.append(own.report(after.document, after.report))
        fixes += after.count
        files += after.count > 0
        if dry:
            output.diff(unified_diff(before, after.document))
        elif target.source == STDIN:
            to_stderr = True
            sys.stdout.write(after.document.text or "")
        elif after.count:
            old, new = (
                (BYTE_ORDER_MARK if document.has_bom else "") + (document.text or "")
                for document in (before, after.document)
            )
            writing.rewrite(Path(before.name), old.encode(), new)
    if not dry:
        output.heading(reports)
        output.findings(reports, to_stderr=to_stderr)
    verb = "would be applied" if dry else "applied"
    output.note(f"{fixes} fix{'' if fixes == 1 else 'es'} {verb} in {counted(files, 'file')}")
    return reports, fixes > 0

"""``--fix``, ``--unsafe-fixes`` and ``--diff``: apply fixes until nothing is left to fix."""

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
    """A document after fixing, and how many fixes that took."""

    document: Document
    report: Report
    count: int = 0


def fix(document: Document, validator: Validator, *, unsafe: bool) -> Fixed:
    """Apply fixes round by round until none is left that helps.

    A fix that brings any finding, or makes one graver, is not made: see :func:`_harms`.
    """
    state = Fixed(document, validator.validate(document))
    if document.text is None or document.format not in EDITABLE or validator.overrides:
        return state
    seen = {document.text}
    while True:
        fixable = _fixable(state.report, unsafe)
        better = _apply(state, fixable, validator) or _harmless_of(state, fixable, validator)
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


def _harmless_of(state: Fixed, fixable: list[Diagnostic], validator: Validator) -> Fixed | None:
    """The state after the fixes that do no harm alone, or after the first that helps."""
    if len(fixable) < 2:
        return None
    alone = ((found, _apply(state, [found], validator)) for found in fixable)
    helpful = [(found, better) for found, better in alone if better is not None]
    if not helpful:
        return None
    return _apply(state, [found for found, _ in helpful], validator) or helpful[0][1]


def _apply(state: Fixed, mended: Sequence[Diagnostic], validator: Validator) -> Fixed | None:
    """The state after the fixes of some findings; None where nothing changes or any harm is done.

    Two fixes that are right alone can be wrong together: both may write the same key.
    """
    before = state.document
    fixes = [found.fix for found in mended if found.fix is not None]
    text, count = apply_fixes(before.text or "", fixes)
    if text == before.text:
        return None
    read = document_from_text(text, before.name, has_bom=before.has_bom)
    report = validator.validate(read)
    less_readable = _reader_codes(read) - _reader_codes(before)
    broken = read.is_broken > before.is_broken
    # What a text that could not be read hid comes to light when it can: that is no harm.
    harmed = not before.is_broken and _harms(state.report, report, mended)
    if broken or less_readable or harmed:
        return None
    return Fixed(read, report, state.count + count)


def _harms(before: Report, after: Report, mended: Sequence[Diagnostic]) -> bool:
    """Whether a report has a finding that the one before it had not.

    A finding may move with its key, so that pointers are compared only for the rules whose
    findings were mended: such a one may not come back in another place.
    """
    codes = {found.code for found in mended}
    return bool(_weighed(after, codes) - _weighed(before, codes))


def _weighed(report: Report, codes: set[str]) -> Counter[tuple[str, ...]]:
    """How often each program is told each thing, and how grave it is there."""
    return Counter(
        (found.code, found.effect, program, found.pointer if found.code in codes else "")
        for found in report.diagnostics
        for program in found.runtimes or ("",)
    )


def _reader_codes(document: Document) -> Counter[str]:
    """How often the reader itself has each thing to say."""
    return Counter(found.code for found in document.diagnostics)


def unified_diff(before: Document, after: Document) -> str:
    """The change as ``diff -u`` shows it."""
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
    """Fix every target; with ``dry`` print the differences instead.

    Returns what remains to be said, and whether anything was (or would be) changed. The fixed
    text of standard input goes to stdout, its findings to stderr.
    """
    reports: list[FileReport] = []
    fixes = files = 0
    aside = False
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
            aside = True
            sys.stdout.write(after.document.text or "")
        elif after.count:
            was, text = (
                (BYTE_ORDER_MARK if each.has_bom else "") + (each.text or "")
                for each in (before, after.document)
            )
            writing.rewrite(Path(before.name), was.encode(), text)
    if not dry:
        output.heading(reports)
        output.findings(reports, aside=aside)
    verb = "would be made" if dry else "made"
    output.note(f"{fixes} fix{'' if fixes == 1 else 'es'} {verb} in {counted(files, 'file')}")
    return reports, fixes > 0

"""Fixing files, or showing what fixing would do."""

from collections.abc import Sequence

from dsconfig.commands.validation.fixing import fix, unified_diff, write
from dsconfig.commands.validation.judge import Judge
from dsconfig.commands.validation.output import Output
from dsconfig.commands.validation.targets import STDIN, Target
from dsconfig.report import FileReport


def repair(
    chosen: Sequence[Target], judge: Judge, output: Output, *, unsafe: bool, dry: bool
) -> tuple[list[FileReport], bool]:
    """Fix every target; with ``dry`` print the differences instead.

    Returns what remains to be said, and whether anything was (or would be) changed. The fixed
    text of standard input goes to stdout, its findings to stderr.
    """
    reports: list[FileReport] = []
    fixes = files = 0
    aside = False
    for target in chosen:
        own = judge.for_file(target.name)
        before = own.read(target)
        after = fix(before, own, unsafe=unsafe)
        reports.append(FileReport(after.document.name, after.document.text, after.report))
        fixes += after.count
        files += after.count > 0
        if dry:
            output.diff(unified_diff(before, after.document))
        elif target.source == STDIN:
            aside = True
            output.text(after.document.text or "")
        elif after.count:
            write(after.document)
    if not dry:
        output.findings(reports, aside=aside)
    verb = "would be made" if dry else "made"
    counted = f"{fixes} fix{'' if fixes == 1 else 'es'} {verb} in {files} file"
    output.note(f"{counted}{'' if files == 1 else 's'}")
    return reports, fixes > 0

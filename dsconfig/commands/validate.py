"""``dsconfig validate``: every mistake in every config, with place, consequence and remedy."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsconfig.commands import options
from dsconfig.commands.validation.output import Output
from dsconfig.commands.validation.targets import STDIN, Target, targets
from dsconfig.commands.validation.validator import Selection, Validator, selectors
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Report
from dsconfig.source.findings import UNREADABLE
from dsconfig.source.pointer import dotted

with lazy_imports():
    from dsconfig.commands.validation import baseline as baselines
    from dsconfig.commands.validation import fixing

if TYPE_CHECKING:
    from dsconfig.report import Diagnostic, FileReport

_about_findings = partial(typer.Option, rich_help_panel="Findings")
_about_fixes = partial(typer.Option, rich_help_panel="Fixes")


@options.with_flags(
    "world_size nodes device model params training_args accelerate_config host_memory "
    "client_optimizer releases"
)
def validate(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILES|DIRS|-]",
            help="Files, directories or - for stdin (default: this directory).",
        ),
    ] = None,
    runtime: options.RuntimeName = None,
    deepspeed_version: options.DeepSpeedVersion = None,
    *,
    flags: dict[str, object],
    overrides: options.Overrides = None,
    output_format: Annotated[
        str, typer.Option(envvar="DSCONFIG_OUTPUT_FORMAT", help="How to print.")
    ] = "full",
    select: Annotated[
        list[str] | None,
        _about_findings(metavar="CODES", help="Report only these (DSC412, DSC4, a rule's name)."),
    ] = None,
    ignore: Annotated[
        list[str] | None, _about_findings(metavar="CODES", help="Leave these out.")
    ] = None,
    baseline: Annotated[
        Path | None,
        _about_findings(
            metavar="FILE", help="A json report of an earlier run; only new findings count."
        ),
    ] = None,
    fix: Annotated[bool, _about_fixes("--fix", help="Apply safe fixes; layout stays.")] = False,
    unsafe_fixes: Annotated[
        bool, _about_fixes("--unsafe-fixes", help="Apply fixes that change what is trained.")
    ] = False,
    diff: Annotated[bool, _about_fixes("--diff", help="Show what fixing would change.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No summary; silence when clean.")
    ] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit 0 in spite of findings.")
    ] = False,
    error_on_warning: Annotated[
        bool, typer.Option("--error-on-warning", help="Exit 1 for warnings, too.")
    ] = False,
    stdin_filename: Annotated[str | None, typer.Option(help="What to call standard input.")] = None,
) -> None:
    """Validator configs. Exit code 0: clean; 1: errors; 2: wrong usage or unreadable input."""
    output = Output(output_format, quiet=quiet)
    # Nothing is imported for facts where there are none.
    own = {name: flag for name, flag in flags.items() if flag is not None}
    known = options.of_project(own, files[0] if files else None)
    validator = Validator(
        facts=options.facts_from(**known) if known else None,
        runtime=runtime,
        version=deepspeed_version,
        overrides=overrides or (),
        selection=Selection(selectors("--select", select), selectors("--ignore", ignore)),
        baseline=baselines.load(baseline) if baseline else None,
    )
    chosen = targets(files or ["."], stdin_filename)
    if fix or unsafe_fixes or diff:
        reports, changed = fixing.repair(chosen, validator, output, unsafe=unsafe_fixes, dry=diff)
    else:
        reports, changed = _judge(chosen, validator), False
        output.heading(reports)
        output.findings(reports)
        if len(chosen) == 1:
            _say_what_dsengine_needs(chosen[0], validator, reports[0], output)
    output.summary(reports)
    raise typer.Exit(_exit_code(reports, changed and diff, exit_zero, error_on_warning))


def _judge(chosen: Sequence[Target], validator: Validator) -> list["FileReport"]:
    reports: list[FileReport] = []
    told: dict[str, list[Diagnostic]] = {}
    for target in chosen:
        own = validator.for_file(target.name)
        document = own.read(target)
        found = own.with_program(document, target.source).report(document)
        # Several files may name one config, which has each mistake once.
        known = told.setdefault(found.file, [])
        new = tuple(each for each in found.report.diagnostics if each not in known)
        known += new
        reports.append(found._replace(report=Report(new)))
    return reports


def _say_what_dsengine_needs(
    target: Target, validator: Validator, report: "FileReport", output: Output
) -> None:
    """One line about what our own engine would stop at, where another program runs the file."""
    is_inferred = report.target is not None and report.target.inferred_from is not None
    if target.source == STDIN or report.report.refusals or not is_inferred:
        return
    own = validator.for_file(target.name)
    pointers = dict.fromkeys(own.stops_dsengine(own.read(target)))
    if pointers:
        named = ", ".join(dotted(pointer) for pointer in list(pointers)[:MOST_NAMED])
        more = f" and {len(pointers) - MOST_NAMED} more" if len(pointers) > MOST_NAMED else ""
        output.note(f"dsengine would stop at {named}{more}: --runtime dsengine says why")


MOST_NAMED = 3


def _exit_code(
    reports: Sequence["FileReport"], would_change: bool, exit_zero: bool, error_on_warning: bool
) -> int:
    codes = [found.code for file in reports for found in file.report.diagnostics]
    if UNREADABLE in codes:
        return 2
    failed = would_change or not all(file.report.ok for file in reports)
    if error_on_warning:
        failed = failed or any(file.report.warnings for file in reports)
    return 1 if failed and not exit_zero else 0

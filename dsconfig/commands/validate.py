"""``dsconfig validate``: report mistakes in configs, with location, consequence and fix."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsconfig.commands import completion, notes, options
from dsconfig.commands.findings_output import Output
from dsconfig.commands.printing import print_text
from dsconfig.commands.validate_options import FindingOptions, FixOptions, RunOptions
from dsconfig.facts.request import FactsRequest
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError
from dsconfig.project.neighbours import TRAINER, Neighbours
from dsconfig.project.targets import STDIN, Target, targets
from dsconfig.project.validator import Validator
from dsconfig.report import Report
from dsconfig.report.render import FOR_PEOPLE, FORMATS
from dsconfig.report.sizes import counted
from dsconfig.source.findings import UNREADABLE
from dsconfig.source.pointer import dotted, is_block

with lazy_imports():
    from dsconfig.checks import agreement
    from dsconfig.commands import effective_settings, watching, writing
    from dsconfig.facts import facts as facts_module
    from dsconfig.project import baseline as baselines
    from dsconfig.project import checking, fixing

if TYPE_CHECKING:
    from dsconfig.report import Diagnostic, FileReport


def validate(
    context: typer.Context,
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
    request: FactsRequest,
    overrides: options.Overrides = None,
    output_format: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            autocompletion=completion.report_formats,
            envvar=options.FORMAT_VARIABLE,
            help=f"Output format: {', '.join(FORMATS)}.",
        ),
    ] = "full",
    findings: FindingOptions,
    fixes: FixOptions,
    quiet: notes.Quiet = False,
    run: RunOptions,
) -> None:
    """Check configs.

    Exit code 1 if there are errors, or with --error-on-warning warnings.
    """
    notes.set_quiet(quiet)
    output = Output(
        output_format,
        quiet=quiet,
        error_on_warning=run.error_on_warning,
        statistics=findings.statistics,
    )
    own = request.stated

    def configured() -> Validator:
        file = files[0] if files else None
        # The modules for facts are imported only if there are any.
        has_facts = own or options.project_facts(request, file)
        return Validator(
            facts=options.facts_from(request, file) if has_facts else None,
            runtime=runtime,
            version=deepspeed_version,
            overrides=overrides or (),
            selection=findings.selection(),
            baseline=baselines.load(findings.baseline) if findings.baseline else None,
        )

    def selected() -> list[Target]:
        arguments = files or ["."]
        return targets(arguments, run.stdin_filename, skip_non_configs=run.skip_non_configs)

    if run.show_settings:
        _show_settings(
            selected(), configured(), findings, own, (output_format, form_origin(context))
        )
        return
    if run.watch:
        _reject_watching(files or (), fixes, output)
        named = [str(flag) for flag in own.values() if isinstance(flag, str | Path)]
        named += [str(findings.baseline)] if findings.baseline else []

        def check(chosen: list[Target]) -> None:
            _check(chosen, configured(), output, fixes, run, files or ())

        watching.watch(selected, check, files or ["."], named)
    raise typer.Exit(_check(selected(), configured(), output, fixes, run, files or ()))


def _check(
    chosen: Sequence[Target],
    validator: Validator,
    output: Output,
    fixes: FixOptions,
    run: RunOptions,
    given: Sequence[str],
) -> int:
    """Check or fix the files, print the results and return the exit code."""
    if not chosen:
        return 0
    if fixes.any:
        unsafe, dry = fixes.unsafe_fixes, fixes.diff
        reports, changed = _repair(chosen, validator, output, unsafe=unsafe, dry=dry)
    else:
        reports, changed = _report(chosen, validator, output, run.jobs), False
    suppressed = validator.baseline.suppressed if validator.baseline else None
    output.summary(reports, suppressed, given=given)
    return _exit_code(reports, changed and fixes.diff, run)


def _reject_watching(files: Sequence[str], fixes: FixOptions, output: Output) -> None:
    """Raise UsageError for options that --watch cannot be combined with."""
    if STDIN in files:
        raise UsageError("--watch requires files: stdin can be read only once")
    if fixes.any:
        raise UsageError("--watch does not write files; omit --fix, --unsafe-fixes and --diff")
    if output.form not in FOR_PEOPLE:
        raise UsageError(f"--watch: choose the output format {' or '.join(FOR_PEOPLE)}")


def _show_settings(
    chosen: Sequence[Target],
    validator: Validator,
    findings: FindingOptions,
    flags: dict[str, object],
    formats: tuple[str, str],
) -> None:
    """Print the settings of the first file."""
    for target in chosen[:1]:
        own = validator.for_file(target.name)
        document = own.read(target)
        own = own.with_program(document, target.source)
        print_text(f"settings of {target.name}\n")
        rows = effective_settings.settings_of(own, target.name, findings, flags, formats)
        print_text(effective_settings.table(rows))


def form_origin(context: typer.Context) -> str:
    """Return where the output format is set."""
    if options.is_flag(context, "output_format"):
        return effective_settings.COMMAND_LINE
    variable = options.FORMAT_VARIABLE
    return variable if os.environ.get(variable) else effective_settings.DEFAULT


def _report(
    chosen: Sequence[Target], validator: Validator, output: Output, jobs: int | None
) -> list["FileReport"]:
    """Print and return the findings, for one file with notes on what is not checked."""
    reports = _validate(chosen, validator, jobs or checking.default_jobs(len(chosen)))
    output.heading(reports)
    output.findings(reports)
    if len(chosen) == 1:
        _note_uncompared(chosen[0], validator, reports[0], output)
        _note_dsengine_errors(chosen[0], validator, reports[0], output)
    return reports


def _validate(chosen: Sequence[Target], validator: Validator, jobs: int) -> list["FileReport"]:
    """Return a report per target; findings of a config that several files name appear once."""
    reports: list[FileReport] = []
    reported: dict[str, list[Diagnostic]] = {}
    for file_report in checking.check_all(chosen, validator, jobs):
        known = reported.setdefault(file_report.file, [])
        new = tuple(finding for finding in file_report.report.diagnostics if finding not in known)
        known += new
        reports.append(file_report._replace(report=Report(new)))
    return reports


def _repair(
    chosen: Sequence[Target], validator: Validator, output: Output, *, unsafe: bool, dry: bool
) -> tuple[list["FileReport"], bool]:
    """Fix every target, or print the differences if ``dry``.

    Returns the remaining reports, and whether anything was (or would be) changed. The fixed text of
    standard input is written to stdout, and findings to stderr.
    """
    reports: list[FileReport] = []
    fixes = files = 0
    to_stderr = False
    neighbours = Neighbours()
    validator = validator._replace(neighbours=neighbours)
    for target in chosen:
        own = validator.for_file(target.name)
        before = own.read(target)
        own = own.with_program(before, target.source)
        after = fixing.fix(before, own, unsafe=unsafe)
        reports.append(own.report(after.document, after.report))
        fixes += after.count
        files += after.count > 0
        if dry:
            output.diff(fixing.unified_diff(before, after.document))
        elif target.source == STDIN:
            to_stderr = True
            sys.stdout.write(after.document.text or "")
        elif after.count:
            old, new = (
                (fixing.BYTE_ORDER_MARK if document.has_bom else "") + (document.text or "")
                for document in (before, after.document)
            )
            writing.rewrite(Path(before.name), old.encode(), new)
            neighbours.changed(Path(before.name))
    if not dry:
        output.heading(reports)
        output.findings(reports, to_stderr=to_stderr)
    verb = "would be applied" if dry else "applied"
    output.note(f"{fixes} fix{'' if fixes == 1 else 'es'} {verb} in {counted(files, 'file')}")
    return reports, fixes > 0


def _note_uncompared(
    target: Target, validator: Validator, report: "FileReport", output: Output
) -> None:
    """Print what is not compared with TrainingArguments for lack of facts."""
    if target.source == STDIN or report.target is None or report.target.runtime != TRAINER:
        return
    own = validator.for_file(target.name)
    document = own.read(target)
    if document.is_unreadable or document.container or not is_block(document.value):
        return
    program = own.with_program(document, target.source).program
    if program is not None:
        named, facts = not program.inferred_from, own.facts or facts_module.Facts()
        text = agreement.uncompared(document.value, facts, program.runtime, named)
        if text:
            output.note(text)


def _note_dsengine_errors(
    target: Target, validator: Validator, report: "FileReport", output: Output
) -> None:
    """Print what dsengine rejects in a file of an inferred other program."""
    is_inferred = report.target is not None and report.target.inferred_from is not None
    if target.source == STDIN or report.report.refusals or not is_inferred:
        return
    own = validator.for_file(target.name)
    pointers = dict.fromkeys(own.dsengine_errors(own.read(target)))
    if pointers:
        named = ", ".join(dotted(pointer) for pointer in list(pointers)[:MOST_NAMED])
        more = f" and {len(pointers) - MOST_NAMED} more" if len(pointers) > MOST_NAMED else ""
        output.note(f"dsengine rejects {named}{more}; details: --runtime dsengine")


MOST_NAMED = 3


def _exit_code(reports: Sequence["FileReport"], would_change: bool, run: RunOptions) -> int:
    codes = [finding.code for file in reports for finding in file.report.diagnostics]
    if UNREADABLE in codes:
        return 2
    failed = would_change or not all(file.report.ok for file in reports)
    if run.error_on_warning:
        failed = failed or any(file.report.warnings for file in reports)
    return 1 if failed and not run.exit_zero else 0

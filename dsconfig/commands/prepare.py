"""Steps shared by plan and run: validate, resolve and plan; stop if the program would."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dsconfig
from dsconfig import examination
from dsconfig.commands.printing import print_json, print_text
from dsconfig.facts.request import flag_of
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError, usage
from dsconfig.report import FileReport, Report
from dsconfig.report.render import render

with lazy_imports():
    from dsconfig.commands import fact_notes, options, text_table
    from dsconfig.facts import facts as empty
    from dsconfig.planner import build
    from dsconfig.planner import plan as plans
    from dsconfig.project import inference
    from dsconfig.report.render import as_json as machine_form

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.planner.plan import Plan
    from dsconfig.report import Diagnostic
    from dsconfig.source import Document

FOUND = 1
ConfigOrPlan = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Config, launch file or plan, or a directory with one (- for a config on stdin).",
        callback=options.file_in,
    ),
]


def planned(
    document: "Document",
    facts: "Facts",
    runtime: str | None,
    version: str | None = None,
    *,
    strict: bool = False,
    form: str = "",
) -> "Plan":
    """Return the plan of a config. Prints errors; exits with code 1 if the program would stop.

    ``strict``: exit at any error, because training would differ from the file. ``form`` is the
    output format of a failure that names the target program; empty: print the errors alone.
    """
    target = inference.plan_target(runtime, version)
    program = target.runtime
    facts = options.completed(facts, document)
    facts = fact_notes.with_arguments_beside(target, document.name, facts)
    facts = fact_notes.without_accumulation(document, facts, program)
    resolution = examination.resolution(document, facts, program)
    show_errors(document, resolution.diagnostics, strict=strict, form=form, target=target)
    if resolution.effective is not None:
        fact_notes.note_unintended_fp32(resolution.effective, document, program, facts)
    try:
        return dsconfig.plan(resolution, facts)
    except build.PlanError as error:
        message = f"{document.name}: {error}"
        if form == "json":
            print_failure(Report(error.diagnostics), target.data, message)
        else:
            print_text(message, err=True)
        raise typer.Exit(FOUND) from None


def plan_in(file: str) -> "Plan | None":
    """Return the plan in a file, or None if it is not a plan. Raises UsageError."""
    text = options.text_of_plan(file)
    if text is None:
        return None
    with usage(file):
        return plans.Plan.from_json(text)


def reject_flags(file: str, flags: Mapping[str, object], facts: "Facts | None" = None) -> None:
    """Raise UsageError for flags and facts that the plan in ``file`` already determines."""
    ignored = [flag_of(name) for name, flag in flags.items() if flag]
    if facts is not None and facts != empty.Facts():
        origins = [origin for origin in facts.origins.values() if origin.startswith("--")]
        ignored += origins or ["flags about facts"]
    if ignored:
        raise UsageError(f"{', '.join(ignored)}: already decided by the plan {file}; plan again")


def show_errors(
    document: "Document",
    findings: tuple["Diagnostic", ...],
    strict: bool = False,
    form: str = "",
    target: "inference.TargetProgram | None" = None,
) -> None:
    """Print the errors; exit with code 1 if the program would stop at them, or if ``strict``.

    ``form``: "json" for errors that end the command as JSON, with the target program.
    """
    report = Report(findings)
    ends = bool(report.errors if strict else report.refusals)
    if ends and form == "json":
        print_failure(report, {} if target is None else target.data)
        raise typer.Exit(FOUND)
    if report.errors:
        if ends and form and target is not None:
            print_text(f"{text_table.paragraph(target.headline)}\n")
        shown = FileReport(document.name, document.text, Report(report.errors))
        print_text(render("full", [shown]), err=not ends)
    if ends:
        raise typer.Exit(FOUND)


def print_failure(report: Report, target: Mapping[str, Any], message: str = "") -> None:
    """Print the errors without which there would be a result, as JSON.

    ``message``: the reason if it is not about a key of the file.
    """
    found = [machine_form.diagnostic_data(error) for error in report.errors]
    data = {"format_version": machine_form.FORMAT_VERSION, **target, "diagnostics": found}
    print_json({**data, "error": message} if message else data)

"""The road that plan and run share: read, validate, resolve, plan; stop where the program would."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

import dsconfig
from dsconfig.commands.errors import UsageError, usage
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import FileReport, Report
from dsconfig.report.render import render

with lazy_imports():
    from dsconfig.commands import assumed, options
    from dsconfig.facts import facts as empty
    from dsconfig.planner import build
    from dsconfig.planner import plan as plans

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.planner.plan import Plan
    from dsconfig.report import Diagnostic
    from dsconfig.source import Document

FOUND = 1
STOPS = ("program-stops", "deepspeed-stops")
"""What resolving calls the end of the program that it replays."""
ConfigOrPlan = Annotated[
    str, typer.Argument(metavar="FILE", help="A config, or a plan; - reads a config from stdin.")
]


def not_told(found: tuple["Diagnostic", ...], report: Report) -> tuple["Diagnostic", ...]:
    """What resolving finds beyond validation: of a key that has an error, or of a program that
    stops in any case, all is said."""
    told = {each.pointer for each in report.errors if each.pointer}
    same = {(each.code, each.pointer) for each in report.errors}
    stops = bool(report.refusals)
    return tuple(
        each
        for each in found
        if each.pointer not in told
        and (each.code, each.pointer) not in same
        and not (stops and each.name in STOPS)
    )


def planned(
    document: "Document",
    facts: "Facts",
    runtime: str,
    version: str | None = None,
    *,
    strict: bool = False,
) -> "Plan":
    """Go all the way. Prints the errors; exits 1 when one of them is a refusal, or when the config
    cannot be planned.

    ``strict``: at any error, for training would be another than the file says.
    """
    program = options.program(runtime, version)
    facts = options.completed(facts, document)
    facts = assumed.one_pass(document, facts, program)
    report = dsconfig.validate(document, facts, runtime=runtime, version=version)
    show_errors(document, report.diagnostics, strict)
    resolution = dsconfig.resolve(document, facts, runtime=runtime, version=version)
    show_errors(document, not_told(resolution.diagnostics, report), strict)
    if resolution.effective is not None:
        assumed.say_fp32(resolution.effective, document, program)
    try:
        return dsconfig.plan(resolution, facts)
    except build.PlanError as error:
        print(f"{document.name}: {error}", file=sys.stderr)
        raise typer.Exit(FOUND) from None


def plan_in(file: str) -> "Plan | None":
    """The plan that a file holds, None where it holds something else. Raises UsageError."""
    text = options.text_of_plan(file)
    if text is None:
        return None
    with usage(file):
        return plans.Plan.from_json(text)


def insist_on_no_flags(
    file: str, flags: Mapping[str, object], facts: "Facts | None" = None
) -> None:
    """Raise UsageError for flags, by name, and facts that a plan in ``file`` has settled."""
    idle = [f"--{name.replace('_', '-')}" for name, flag in flags.items() if flag]
    if facts is not None and facts != empty.Facts():
        given = [origin for origin in facts.origins.values() if origin.startswith("--")]
        idle += given or ["flags about facts"]
    if idle:
        raise UsageError(f"{', '.join(idle)}: {file} is a plan, decided already; plan again")


def show_errors(
    document: "Document", found: tuple["Diagnostic", ...], strict: bool = False
) -> None:
    """Print what is at error level; exit 1 when the program would stop for it, or ``strict``."""
    report = Report(found)
    ends = bool(report.errors if strict else report.refusals)
    if report.errors:
        shown = FileReport(document.name, document.text, Report(report.errors))
        print(render("full", [shown]), file=sys.stdout if ends else sys.stderr)
    if ends:
        raise typer.Exit(FOUND)

"""The road that plan and run share: read, validate, resolve, plan; stop where the program would."""

import sys
from typing import TYPE_CHECKING

import typer

import dsconfig
from dsconfig.lazily import lazily
from dsconfig.report import FileReport, Report
from dsconfig.report.render import render

with lazily():
    from dsconfig.planner import making

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.planner.plan import Plan
    from dsconfig.report import Diagnostic
    from dsconfig.resolver.resolution import Resolution
    from dsconfig.source import Document

FOUND = 1


def resolved(
    document: "Document", facts: "Facts", runtime: str, version: str | None = None
) -> "Resolution":
    """Validate and resolve. Prints the errors; exits 1 when one of them is a refusal."""
    report = dsconfig.validate(document, facts, runtime=runtime, version=version)
    show_errors(document, report.diagnostics)
    resolution = dsconfig.resolve(document, facts, runtime=runtime, version=version)
    show_errors(document, resolution.diagnostics)
    return resolution


def planned(
    document: "Document", facts: "Facts", runtime: str, version: str | None = None
) -> "Plan":
    """Go all the way. Exits 1 with the reason when the config cannot be planned."""
    try:
        return dsconfig.plan(resolved(document, facts, runtime, version), facts)
    except making.PlanError as error:
        print(f"{document.name}: {error}", file=sys.stderr)
        raise typer.Exit(FOUND) from None


def show_errors(document: "Document", found: tuple["Diagnostic", ...]) -> None:
    """Print what is at error level; exit 1 when the program would stop for it."""
    report = Report(found)
    if report.errors:
        shown = FileReport(document.name, document.text, Report(report.errors))
        print(render("full", [shown]), file=sys.stdout if report.refusals else sys.stderr)
    if report.refusals:
        raise typer.Exit(FOUND)

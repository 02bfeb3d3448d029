"""The road that plan and run share: read, validate, resolve, plan; stop at the first error."""

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.planner.model import Plan
    from dsconfig.report import Diagnostic
    from dsconfig.resolver.resolution import Resolution
    from dsconfig.source import Document

FOUND = 1


def resolved(
    document: "Document", facts: "Facts", runtime: str, version: str | None = None
) -> "Resolution":
    """Validate and resolve. Prints the errors and exits 1 when there are any."""
    import dsconfig

    report = dsconfig.validate(document, facts, runtime=runtime, version=version)
    stop_at_errors(document, report.errors)
    resolution = dsconfig.resolve(document, facts, runtime=runtime, version=version)
    stop_at_errors(document, tuple(found for found in resolution.diagnostics))
    return resolution


def planned(
    document: "Document", facts: "Facts", runtime: str, version: str | None = None
) -> "Plan":
    """Go all the way. Exits 1 with the reason when the config cannot be planned."""
    import dsconfig
    from dsconfig.planner import PlanError

    try:
        return dsconfig.plan(resolved(document, facts, runtime, version), facts)
    except PlanError as error:
        print(f"{document.name}: {error}", file=sys.stderr)
        raise typer.Exit(FOUND) from None


def stop_at_errors(document: "Document", found: tuple["Diagnostic", ...]) -> None:
    """Print what is at error level, then exit 1; return when nothing is."""
    from dsconfig.report import FileReport, Report, Severity
    from dsconfig.report.render import render

    errors = tuple(each for each in found if each.severity is Severity.ERROR)
    if errors:
        report = FileReport(document.name, document.text, Report(errors))
        print(render("full", [report]))
        raise typer.Exit(FOUND)

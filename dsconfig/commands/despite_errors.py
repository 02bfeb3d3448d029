"""The concrete config of a file, also of one with errors, and whether its run can start."""

from typing import TYPE_CHECKING, Any

import typer

from dsconfig import api
from dsconfig.commands import fact_notes, prepare
from dsconfig.commands.notes import note
from dsconfig.report import FileReport, Report
from dsconfig.report.render import render
from dsconfig.resolver import codes, draft
from dsconfig.runtimes.base import AUTO, AutoHandling
from dsconfig.source.pointer import copied, dotted, is_block, join, lookup, split

MISSING_FACT = codes.CODES["DSC150"].name

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.project.inference import TargetProgram
    from dsconfig.runtimes.base import Runtime
    from dsconfig.runtimes.effective import Effective
    from dsconfig.source import Document


def resolved(
    document: "Document", facts: "Facts", target: "TargetProgram", form: str
) -> "tuple[Effective, Report]":
    """Return the concrete config and the errors of the file.

    A config with errors is estimated too. Prints the errors in the output format ``form`` and exits
    with code 1 if that is not possible.
    """
    program = target.runtime
    report = api.check(document, facts, runtime=program, version=program.version)
    result = api.fill_in(document, facts, runtime=program, version=program.version)
    more = Report(prepare.new_findings(result.diagnostics, report))
    errors = Report(report.errors + more.errors)
    effective = result.effective or _repaired(document, errors, facts, program)
    if effective is None:
        if form == "json":
            prepare.print_failure(errors, target.data)
        else:
            typer.echo(render("full", [FileReport(document.name, document.text, errors)]))
        typer.echo("no estimate: the config cannot be read or has no valid stage", err=True)
        raise typer.Exit(1)
    fact_notes.note_ignored_flags(effective, document, program, facts)
    fact_notes.note_unintended_fp32(effective, document, program, facts)
    fact_notes.note_not_estimated(effective, facts)
    return effective, errors


def prevents_start(errors: Report) -> bool:
    """Return whether the program stops at one of the errors; a missing fact does not stop it."""
    return any(error.name != MISSING_FACT for error in errors.refusals)


def _repaired(
    document: "Document", errors: Report, facts: "Facts", program: "Runtime"
) -> "Effective | None":
    """Return the concrete config of a file that the program rejects, if it can be determined.

    A rejected value that cannot be used is replaced by the one of the program. Without a valid
    stage there is no estimate: any other stage would give an unrelated number.
    """
    stage = ("DSC031", "/zero_optimization/stage")
    if document.is_broken or stage in ((error.code, error.pointer) for error in errors.errors):
        return None
    result = api.fill_in(document, facts, runtime=program)
    effective = result.derive()
    if effective is not None and effective.batch is not None:
        return effective
    own = (error.pointer for error in errors.errors if error.file is None)
    pointers = [pointer.removesuffix("/type") for pointer in own if pointer]
    reduced = document._replace(value=_without(document.value, pointers, program))
    result = api.fill_in(reduced, facts, runtime=program)
    effective = result.effective or result.derive() or effective
    still_open: list[str] = []
    if effective is None:  # facts are missing: DeepSpeed's defaults for what is still "auto"
        still_open = [join(*path.split(".")) for path in draft.auto_paths(reduced.value)]
        reduced = reduced._replace(value=_deleted(reduced.value, still_open))
        effective = api.fill_in(reduced, facts, runtime=program).derive()
    if effective is None:
        return None
    if pointers:
        names = ", ".join(dict.fromkeys(map(dotted, pointers)))
        note(f"estimated without the rejected values of {names}")
    if still_open:
        names = ", ".join(map(dotted, still_open))
        note(f'estimated with the default of DeepSpeed for {names} ("auto" is not resolved)')
    return effective


def _without(config: dict[str, Any], pointers: list[str], program: "Runtime") -> dict[str, Any]:
    """Return a copy of a config with "auto", or without an entry, at each of ``pointers``."""
    filled = [at for at in pointers if program.on_auto(split(at), config) is AutoHandling.FILLED]
    reduced = _deleted(config, [pointer for pointer in pointers if pointer not in filled])
    for pointer in filled:
        *parents, name = split(pointer)
        block = lookup(reduced, join(*parents))
        if is_block(block):
            block[name] = AUTO
    return reduced


def _deleted(config: dict[str, Any], pointers: list[str]) -> dict[str, Any]:
    """Return a copy of a config without the entries at ``pointers``."""
    reduced = copied(config)
    for pointer in pointers:
        *parents, name = split(pointer)
        block = lookup(reduced, join(*parents))
        if is_block(block):
            block.pop(name, None)
    return reduced

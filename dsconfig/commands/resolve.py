"""``dsconfig resolve FILE``: every "auto" replaced, every value traced to its cause."""

import json
import shutil
from dataclasses import replace
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dsconfig
from dsconfig.commands import options
from dsconfig.commands.errors import UsageError, usage
from dsconfig.commands.writing import write
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import FileReport, Report
from dsconfig.report.render.terminal import one_line
from dsconfig.report.report import in_order
from dsconfig.source.pointer import dotted, from_dotted, is_block, is_list, lookup

with lazy_imports():
    from dsconfig.commands import assumed, key_words, ledger_table
    from dsconfig.planner.coverage import findings
    from dsconfig.report import render
    from dsconfig.report.render import as_json as machine_form

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.resolver.resolution import Resolution
    from dsconfig.runtimes.base import Runtime
    from dsconfig.source import Document

MOST_NAMED = 3
"""Keys of one name that are told apart in a message."""
PIPED_WIDTH = 120
"""Columns when nobody looks at a screen; COLUMNS overrides it."""


@options.with_facts
def resolve(
    file: options.ConfigFile,
    *,
    overrides: options.Overrides = None,
    runtime: options.RuntimeName = None,
    deepspeed_version: options.DeepSpeedVersion = None,
    explain: Annotated[
        str | None, typer.Option(metavar="PATH", help="Why this key has its value.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the concrete config as JSON here; - is stdout."),
    ] = None,
    output_format: options.FullOrJson = "full",
    facts: "Facts",
) -> None:
    """Replace every "auto" by a value and say why; or show what another program would do.

    Exit code 1 when something is left open or contradictory.
    """
    document = options.load(file, overrides)
    program = options.program(runtime, deepspeed_version)
    facts = options.completed(facts, document)
    facts = assumed.one_pass(document, facts, program)
    with usage():
        asker = runtime or "dsengine"
        result = dsconfig.resolve(document, facts, runtime=asker, version=deepspeed_version)
    if result.effective is not None:
        assumed.say_idle_flags(result.effective, facts)
        assumed.say_fp32(result.effective, document, program)
    asked = None if explain is None else asked_for(result, explain)
    if output is not None and str(output) != "-":
        if result.ok:
            write(output, as_json(result.config) + "\n")
        else:
            typer.echo(f"{output} is not written: the config is not resolved", err=True)
    result = with_what_is_not_built(result, document, facts, program)
    if output is not None and str(output) == "-":
        typer.echo(as_json(result.config))
    elif output_format == "json":
        typer.echo(json.dumps(shape(result, asked), indent=2, default=str))
    elif asked is not None:
        typer.echo(explanation(result, asked))
    else:
        show(result, document.name, document.text)
    if not result.ok:
        raise typer.Exit(1)


def with_what_is_not_built(
    result: "Resolution", document: "Document", facts: "Facts", program: "Runtime"
) -> "Resolution":
    """The resolution with what the program's plan would refuse; its values are right elsewhere."""
    if program.runs_deepspeed or not result.ok:
        return result
    missing = findings.not_built(document, facts, program)
    return replace(result, diagnostics=in_order((*result.diagnostics, *missing)))


def asked_for(result: "Resolution", name: str) -> str:
    """The pointer of the key that ``--explain`` names: by its path, or by a name that is its own.

    Raises UsageError, with the nearest name, where there is no such key.
    """
    told = {told.pointer for told in (*result.ledger, *result.diagnostics)}

    def is_here(path: str) -> bool:
        pointer = from_dotted(path)
        return pointer in told or lookup(result.config, pointer) is not None

    if is_here(name):
        return from_dotted(name)
    found = [key.path for key in key_words.keys_named(name)]
    meant = [path for path in found if is_here(path)] or found
    if len(meant) == 1:
        return from_dotted(meant[0])
    some = " or ".join(meant[:MOST_NAMED])
    raise UsageError(f"--explain: {name} is a key of {len(meant)} blocks; name {some}, for example")


def shape(result: "Resolution", only: str | None) -> dict[str, Any]:
    """The machine form: ``format_version``, ``config``, ``ledger``, ``diagnostics``.

    With ``only``, ledger and diagnostics are those of the key at that pointer alone.
    """
    return {
        "format_version": machine_form.FORMAT_VERSION,
        "runtime": result.runtime,
        "config": finite(result.config),
        "ledger": [
            {
                "pointer": entry.pointer,
                "value": finite(entry.value),
                "source": entry.source,
                "rule": entry.rule,
                "inputs": finite(dict(entry.inputs)),
            }
            for entry in result.ledger
            if only in (None, entry.pointer)
        ],
        "diagnostics": [
            machine_form.diagnostic_data(found)
            for found in result.diagnostics
            if only in (None, found.pointer)
        ],
    }


def as_json(config: dict[str, Any]) -> str:
    """Valid JSON in the user's key order. An infinite interval is null there: never."""
    return json.dumps(finite(config, infinity=None), indent=4, ensure_ascii=False, allow_nan=False)


def finite(value: Any, infinity: str | None = "inf") -> Any:
    """The value with every infinity replaced, which JSON has no way to write."""
    if is_block(value):
        return {key: finite(child, infinity) for key, child in value.items()}
    if is_list(value):
        return [finite(child, infinity) for child in value]
    return infinity if isinstance(value, float) and isinf(value) else value


def explanation(result: "Resolution", pointer: str) -> str:
    """The ledger entry of the key at a pointer, or what else is known of it."""
    entries = [entry for entry in result.ledger if entry.pointer == pointer]
    said = [ledger_table.explained(entry) for entry in entries]
    said += [
        f"{found.code} {found.message}\n  help: {found.help}"
        for found in result.diagnostics
        if found.pointer == pointer
    ]
    if said:
        return "\n".join(said)
    value = lookup(result.config, pointer)
    if value is not None:
        shown = ledger_table.shown(value)
        return one_line(f"{dotted(pointer)} = {shown}: as the file says; nothing was filled in")
    return f"{dotted(pointer)} is not in the config, and no rule fills it in"


def show(result: "Resolution", file: str, text: str | None) -> None:
    """The ledger, then the findings."""
    width = shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
    typer.echo(ledger_table.ledger(result, width))
    if result.diagnostics:
        typer.echo()
        typer.echo(render.render("full", [FileReport(file, text, Report(result.diagnostics))]))

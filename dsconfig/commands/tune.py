"""``dsconfig tune``: which config fits and is fastest here, and why each other one loses."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsconfig.commands import inference, memory_options, options
from dsconfig.commands.errors import UsageError, usage
from dsconfig.commands.writing import write
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import RECOMPUTATION, format_instructions

with lazy_imports():
    from dsconfig.commands import estimate_tables as tables
    from dsconfig.commands import screen, written_for
    from dsconfig.cost import choices, rendering, search

if TYPE_CHECKING:
    from dsconfig.commands.written_for import Written
    from dsconfig.cost.search import Candidate
    from dsconfig.facts import Facts
    from dsconfig.runtimes.base import Runtime

SHOWN = 10


@options.with_groups
@options.with_facts
def tune(
    *,
    style: memory_options.Style,
    runtime: options.RuntimeName = None,
    deepspeed_version: options.DeepSpeedVersion = None,
    show_all: Annotated[bool, typer.Option("--all", help="List every candidate.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the winner here; - is stdout.")
    ] = None,
    output_format: options.FullOrJson = "full",
    facts: "Facts",
) -> None:
    """Rank stage, offload and recomputation by expected time, with the largest batch that fits.

    With --runtime dsengine, the first is what resolve and init choose for these facts.

    Exit code 1 when nothing fits.
    """
    found_out = inference.program(runtime, deepspeed_version, facts=facts)
    program = found_out.runtime
    facts = options.with_this_machine(facts)
    if facts.training is None or facts.training.sequence_length is None:
        raise UsageError("tune needs the length of a sample: give --seq-len")
    facts = memory_options.with_style(facts, style)
    with usage():
        found = search.tune(facts, runtime=program)
    won = bool(found) and not found[0].reason
    if won and output is not None:
        made = written(found[0], program)
        if str(output) == "-" and made.steps:
            typer.echo(f"beside the file, set {format_instructions(made.steps)}", err=True)
        write(output, json.dumps(made.config, indent=4) + "\n")
    if output is None or str(output) != "-":
        _show(found, show_all, output_format, facts, found_out)
    known = facts.host is not None and facts.host.memory_bytes is not None
    if won and found[0].option.host.bytes and not known:
        typer.echo("main memory is taken to be as large as needed: give --host-memory", err=True)
    if not won:
        typer.echo(
            "nothing fits: more GPUs, --host-memory, --nvme or a shorter --seq-len", err=True
        )
        raise typer.Exit(1)


def written(winner: "Candidate", program: "Runtime") -> "Written":
    """The file of a candidate, and what its program sets elsewhere."""
    config = choices.config_of(winner.effective, recomputes=program.recomputes_from_config)
    beside = choices.recomputation_edits(winner.choice.recompute)
    if program.recomputes_from_config:
        beside.pop(RECOMPUTATION, None)
    return written_for.written_for(program, config, beside)


def _show(
    found: "tuple[Candidate, ...]",
    show_all: bool,
    output_format: str,
    facts: "Facts",
    program: inference.Program,
) -> None:
    if output_format == "json":
        data = rendering.candidates_data(found)
        typer.echo(json.dumps({**data, **program.data}, indent=2))
        return
    with screen.ending_with(tables.found_first(found[0])):
        tables.print_candidates(found, None if show_all else SHOWN, facts, program)
    if not found[0].reason:
        made = written(found[0], program.runtime)
        if made.steps:
            typer.echo(
                tables.paragraph(f"Beside the file (-o), set {format_instructions(made.steps)}.")
            )

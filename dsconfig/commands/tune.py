"""``dsconfig tune``: which config fits and is fastest here, and why each other one loses."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsconfig.commands import memory_options, options
from dsconfig.commands.errors import UsageError, usage, write
from dsconfig.lazily import lazily

with lazily():
    from dsconfig.commands import estimate_tables as tables
    from dsconfig.cost import choices, rendering, search

if TYPE_CHECKING:
    from dsconfig.cost.search import Candidate
    from dsconfig.facts import Facts

SHOWN = 12

Out = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the winner here; - is stdout.")
]
ShowAll = Annotated[bool, typer.Option("--all", help="List every candidate.")]


@options.with_facts()
def tune(
    *,
    facts: "Facts",
    attention: memory_options.Attention = None,
    fused_kernels: memory_options.FusedKernels = False,
    trainable: memory_options.Trainable = None,
    runtime: options.RuntimeName = None,
    deepspeed_version: options.DeepSpeedVersion = None,
    show_all: ShowAll = False,
    output: Out = None,
    output_format: options.FullOrJson = "full",
) -> None:
    """Rank stage, offload and recomputation by expected time, with the largest batch that fits.

    The first is what resolve and init choose for these facts.

    Exit code 1 when nothing fits.
    """
    program = options.program(runtime, deepspeed_version)
    if facts.training is None or facts.training.sequence_length is None:
        raise UsageError("tune needs the length of a sample: give --seq-len")
    facts = memory_options.with_style(facts, None, attention, fused_kernels)
    facts = memory_options.with_trainable(facts, trainable)
    with usage():
        found = search.tune(facts, runtime=program)
    won = bool(found) and not found[0].reason
    if won and output is not None:
        _write(found[0], output)
    if output is None or str(output) != "-":
        _show(found, show_all, output_format)
    if not won:
        typer.echo(
            "nothing fits: more GPUs, --host-memory, --nvme or a shorter --seq-len", err=True
        )
        raise typer.Exit(1)


def _write(winner: "Candidate", path: Path) -> None:
    text = json.dumps(choices.config_of(winner.effective), indent=4) + "\n"
    if str(path) == "-":
        typer.echo(text, nl=False)
        return
    write(path, text)


def _show(found: "tuple[Candidate, ...]", show_all: bool, output_format: str) -> None:
    if output_format == "json":
        typer.echo(json.dumps(rendering.candidates_data(found), indent=2))
        return
    typer.echo(str(tables.candidates_table(found if show_all else found[:SHOWN])))
    if len(found) > SHOWN and not show_all:
        typer.echo(f"{len(found) - SHOWN} more with --all")
    typer.echo(
        "Times are from a model of FLOPs, links and PCIe, at the smallest batch in question: to "
        "rank, not to promise."
    )

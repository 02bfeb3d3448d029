"""``dsconfig init``: a starter config for a model on given hardware, each choice explained."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dsconfig.commands import inference, options
from dsconfig.commands.errors import UsageError
from dsconfig.commands.writing import write
from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.commands import host_memory, init_template

SEQUENCE_LENGTH = 2048
"""Tokens per sample where nobody says."""


@options.with_flags(
    "model params gpus nodes device seq_len micro_batch global_batch host_memory "
    "training_args accelerate_config lora_rank lora_targets lora_dropout trainable base_weights",
    seq_len=SEQUENCE_LENGTH,
)
def init(
    *,
    flags: dict[str, Any],
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-5,
    runtime: options.RuntimeName = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write here, not to stdout."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a commented starter config that validates clean, for the program that will run it.

    That is --runtime, else who takes --training-args or --accelerate-config, or whose file beside
    -o names it; else the file suits every program.

    With --model (or --params), --gpus and --device: stage, offload, buckets and micro batch are
    the fastest that fit. Without them: a cautious start. For transformers and accelerate what
    they fill in stays "auto". The reasons stand under "$dsconfig", which every program reads
    past; with --runtime deepspeed or dsengine they are // remarks.
    """
    given = options.with_project_facts({**flags, "learning_rate": learning_rate}, None)
    facts = options.facts_from(**given)
    output = None if str(output) == "-" else output
    found = inference.target_program(runtime, None, source=str(output or ""), facts=facts)
    known = (facts.model, facts.world_size, facts.device)
    if any(known) and not all(known):
        raise UsageError("name --model (or --params), --gpus and --device together, or none")
    if all(known):
        facts = options.with_memory_here(facts)
        if facts.host is None or facts.host.memory_bytes is None:
            typer.echo(host_memory.ASSUMED, err=True)
        is_named = found.inferred_from != inference.DEFAULT
        selective = is_named and found.runtime.recomputes_selectively
        starter = init_template.chosen(facts, learning_rate, found.runtime, selective=selective)
    else:
        starter = init_template.cautious(learning_rate)
    # A file that nobody made for one program has to suit those, too, that read strict JSON.
    hjson = found.inferred_from != inference.DEFAULT and found.runtime.reads_hjson
    text = init_template.written(starter.for_program(found.runtime), hjson=hjson)
    _emit(text, output, found, force=force)


def _emit(text: str, output: Path | None, found: inference.TargetProgram, *, force: bool) -> None:
    """Write the file, and say for whom it is."""
    everybody = found.inferred_from == inference.DEFAULT
    said = found.headline if found.inferred_from else ""
    if everybody:
        said = "for every program, as nothing tells which; --runtime says otherwise"
    if output is not None:
        if output.exists() and not force:
            raise UsageError(f"{output} exists; name another file, or give --force")
        write(output, text)
        flag = "" if everybody else f"--runtime {found.runtime.name} "
        wrote = f"wrote {output}; judge it with `dsconfig validate {flag}{output}`"
        said = f"{said}\n{wrote}".strip()
    if said:
        typer.echo(said, err=True)
    if output is None:
        typer.echo(text, nl=False)

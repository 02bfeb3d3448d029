"""``dsconfig init``: a starter config for a model on given hardware, each choice explained."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dsconfig.commands import inference, options
from dsconfig.commands.errors import UsageError
from dsconfig.commands.writing import write
from dsconfig.lazily import lazily

with lazily():
    from dsconfig.commands import init_template

Out = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Write here, not to stdout."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]
LearningRate = Annotated[float, typer.Option("--learning-rate", help="Peak learning rate.")]
SEQUENCE_LENGTH = 2048
"""Tokens per sample where nobody says."""


def init(
    model: options.Model = None,
    params: options.Params = None,
    gpus: options.WorldSize = None,
    nodes: options.Nodes = None,
    device: options.Device = None,
    seq_len: options.SequenceLength = SEQUENCE_LENGTH,
    micro_batch: options.MicroBatch = None,
    global_batch: options.GlobalBatch = None,
    host_memory: options.HostMemory = None,
    training_args: options.TrainingArgs = None,
    accelerate_config: options.AccelerateConfig = None,
    learning_rate: LearningRate = 1e-5,
    runtime: options.RuntimeName = None,
    output: Out = None,
    force: Force = False,
) -> None:
    """Write a commented starter config that validates clean, for the program that will run it.

    That is --runtime, else who takes --training-args or --accelerate-config, or whose file beside
    -o names it; else the file suits every program.

    With --model (or --params), --gpus and --device: stage, offload, buckets and micro batch are
    the fastest that fit. Without them: a cautious start. For transformers and accelerate what
    they fill in stays "auto". The reasons stand under "$dsconfig", which every program reads
    past; with --runtime deepspeed or dsengine they are // remarks.
    """
    flags: dict[str, Any] = {
        "model": model,
        "params": params,
        "world_size": gpus,
        "nodes": nodes,
        "device": device,
        "training_args": training_args,
        "accelerate_config": accelerate_config,
        "sequence_length": seq_len,
        "micro_batch": micro_batch,
        "global_batch": global_batch,
        "host_memory": host_memory,
        "learning_rate": learning_rate,
    }
    facts = options.facts_from(**options.of_project(flags, None))
    output = None if str(output) == "-" else output
    found = inference.program(runtime, None, source=str(output or ""), facts=facts)
    known = (facts.model, facts.world_size, facts.device)
    if any(known) and not all(known):
        raise UsageError("name --model (or --params), --gpus and --device together, or none")
    if all(known):
        starter = init_template.chosen(facts, learning_rate, found.runtime)
    else:
        starter = init_template.cautious(learning_rate)
    # A file that nobody made for one program has to suit those, too, that read strict JSON.
    hjson = found.found != inference.BY_DEFAULT and found.runtime.reads_hjson
    text = init_template.written(starter.for_program(found.runtime), hjson=hjson)
    _emit(text, output, found, force=force)


def _emit(text: str, output: Path | None, found: inference.Program, *, force: bool) -> None:
    """Write the file, and say for whom it is."""
    everybody = found.found == inference.BY_DEFAULT
    said = found.sentence if found.found else ""
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

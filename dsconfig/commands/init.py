"""``dsconfig init``: write a starter config for a model and hardware, with reasons."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dsconfig
from dsconfig import os_errors
from dsconfig.commands import options
from dsconfig.commands.notes import note
from dsconfig.commands.writing import write
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import inference
from dsconfig.project.errors import UsageError
from dsconfig.report import Severity

with lazy_imports():
    from dsconfig.commands import host_memory, text_table
    from dsconfig.project import starter as starters

if TYPE_CHECKING:
    from dsconfig.facts import Facts

SEQUENCE_LENGTH = 2048
"""Default tokens per sample."""


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
        typer.Option("-o", "--output", metavar="FILE", help="Write to FILE instead of stdout."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE if it exists.")] = False,
) -> None:
    """Write a valid, commented starter config for the target program.

    The target program is --runtime, else inferred from --training-args, --accelerate-config or a
    file next to -o that names the config; else the config is valid for every program.

    With --model (or --params), --gpus and --device: the fastest stage, offload, buckets and micro
    batch that fit. Without them: conservative values. Values that transformers or accelerate fill
    in stay "auto". Reasons are written under "$dsconfig", which all programs ignore; with
    --runtime deepspeed or dsengine they are // comments.
    """
    fact_flags = options.with_project_facts({**flags, "learning_rate": learning_rate}, None)
    facts = options.facts_from(**fact_flags)
    output = None if str(output) == "-" else output
    target = inference.target_program(runtime, None, source=str(output or ""), facts=facts)
    known = (facts.model, facts.world_size, facts.device)
    if any(known) and not all(known):
        raise UsageError("specify --model (or --params), --gpus and --device together, or none")
    if all(known):
        facts = options.with_memory_here(facts)
        is_named = target.inferred_from != inference.DEFAULT
        selective = is_named and target.runtime.recomputes_selectively
        starter = starters.chosen(facts, learning_rate, target.runtime, selective=selective)
        if starter.host_bytes:
            note(text_table.paragraph(host_memory.sentence(starter.host_bytes, facts)))
    else:
        starter = starters.conservative(learning_rate, facts)
    # Without a target program the file must be strict JSON.
    hjson = target.inferred_from != inference.DEFAULT and target.runtime.reads_hjson
    starter = starter.for_program(target.runtime)
    text = starters.render(starter, hjson=hjson)
    _check(text, facts, target)
    _emit(starter.title, text, output, target, force=force)


def _check(text: str, facts: "Facts", target: inference.TargetProgram) -> None:
    """Raise UsageError if no starter is valid under the facts, such as invalid arguments."""
    is_for_all = target.inferred_from == inference.DEFAULT
    program = None if is_for_all else target.runtime
    document = dsconfig.read(text, name="starter config")
    report = dsconfig.validate(document, facts, runtime=program, version=target.runtime.version)
    for finding in report.diagnostics:
        if finding.severity is not Severity.INFO:
            cause = f"{finding.code}: {finding.message}"
            raise UsageError(f"{cause}; {finding.help}" if finding.help else cause)


FOR_ALL = (
    "target: every program (choose one with --runtime). The Trainer requires the same values in "
    'TrainingArguments; with --runtime transformers, the file contains "auto" for them.'
)


def _emit(
    title: str,
    text: str,
    output: Path | None,
    target: inference.TargetProgram,
    *,
    force: bool,
) -> None:
    """Write the file or print it, and print the target program; the title is part of the text."""
    for_all = target.inferred_from == inference.DEFAULT
    message = target.headline if target.inferred_from else ""
    if for_all:
        message = text_table.paragraph(FOR_ALL)
    if output is not None:
        if os_errors.exists(output) and not force:
            raise UsageError(f"{output} exists; specify another file, or --force")
        write(output, text)
        flag = "" if for_all else f"--runtime {target.runtime.name} "
        wrote = f"wrote {output}; check it with `dsconfig validate {flag}{output}`"
        message = f"{message}\n{text_table.paragraph(title)}\n{wrote}".strip()
    if message:
        note(message)
    if output is None:
        typer.echo(text, nl=False)

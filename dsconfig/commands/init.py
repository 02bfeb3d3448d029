"""``dsconfig init``: write a starter config for a model and hardware, with reasons."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dsconfig
from dsconfig import examination
from dsconfig.commands import options
from dsconfig.commands.flags import Only
from dsconfig.commands.notes import note
from dsconfig.commands.writing import write
from dsconfig.facts.naming import named
from dsconfig.facts.request import FactsRequest, flag_of
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import inference
from dsconfig.project.errors import UsageError
from dsconfig.project.neighbours import ACCELERATE
from dsconfig.report import Severity, writers
from dsconfig.runtimes.base import SEQUENCE
from dsconfig.schema.paths import STAGE
from dsconfig.source.pointer import value_at

with lazy_imports():
    from dsconfig.commands import host_memory, text_table
    from dsconfig.project import launch_file
    from dsconfig.project import starter as starters

if TYPE_CHECKING:
    from dsconfig.facts import Facts

SEQUENCE_LENGTH = 2048
"""Default tokens per sample."""
LEARNING_RATE = 1e-5


Stated = Annotated[
    FactsRequest,
    Only(
        "model params gpus nodes device seq_len micro_batch global_batch precision host_memory "
        "tensor_parallel sequence_parallel pipeline_parallel expert_parallel learning_rate "
        "training_args accelerate_config lora_rank lora_targets lora_dropout trainable "
        "base_weights",
        seq_len=SEQUENCE_LENGTH,
        learning_rate=LEARNING_RATE,
    ),
]


def init(
    *,
    request: Stated,
    runtime: options.RuntimeName = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write to FILE instead of stdout."),
    ] = None,
) -> None:
    """Write a valid, commented starter config for the target program.

    The target program is --runtime, else inferred from --training-args, --accelerate-config or a
    file next to -o that names the config; else the config is valid for every program.

    With --model (or --params), --gpus and --device: the fastest stage, offload, buckets and micro
    batch that fit, and parallel degrees of the target program if the model needs them. Without
    them: conservative values. Values that transformers or accelerate fill in stay "auto". Reasons
    are written under "$dsconfig", which all programs ignore; with --runtime deepspeed or dsengine
    they are // comments.
    """
    facts = options.facts_from(request, None)
    output = None if str(output) == "-" else output
    target = inference.target_program(runtime, None, source=str(output or ""), facts=facts)
    known = (facts.model, facts.world_size, facts.device)
    if any(
        (facts.model, facts.origins.get("world_size") == named("gpus"), facts.device)
    ) and not all(known):
        raise UsageError(
            "specify --model (or --params), --gpus and --device together, or none of them"
        )
    starter = _starter(facts, request, target, searched=all(known))
    # Without a target program the file must be strict JSON.
    hjson = not _is_for_all(target) and target.runtime.reads_hjson
    text = starters.render(starter, hjson=hjson)
    launch = _launch_config(facts, target, starter, output)
    _check(text, replace(facts, launch=launch) if launch else facts, target)
    message = [text_table.paragraph(FOR_ALL) if _is_for_all(target) else ""]
    if target.inferred_from and not _is_for_all(target):
        message = [text_table.paragraph(target.headline)]
    if output is not None:
        write(output, text)
        message += [
            text_table.paragraph(starter.title),
            *_next_steps(output, starter, request, target),
        ]
    if launch:
        text_of_launch = writers.yaml(launch).rstrip()
        message += [f"accelerate config to launch it with:\n{text_of_launch}"]
    if any(message):
        note("\n".join(filter(None, message)))
    if output is None:
        write(None, text)


def _is_for_all(target: inference.TargetProgram) -> bool:
    return target.inferred_from == inference.DEFAULT


def _starter(
    facts: "Facts", request: FactsRequest, target: inference.TargetProgram, *, searched: bool
) -> "starters.Starter":
    """Return the starter config for the target; prints a note about host memory."""
    learning_rate = request.learning_rate or LEARNING_RATE
    if not searched:
        starter = starters.conservative(learning_rate, facts)
        return starter.for_program(target.runtime)
    facts = options.with_memory_here(facts)
    rank, targets = request.lora_rank, request.lora_targets or ""
    starter = starters.chosen(
        facts,
        learning_rate,
        target.runtime,
        for_all=_is_for_all(target),
        adapters=starters.Adapters(rank, targets) if rank else None,
    )
    if starter.host_bytes:
        note(text_table.paragraph(host_memory.sentence(starter.host_bytes, facts)))
    return starter.for_program(target.runtime)


def _launch_config(
    facts: "Facts",
    target: inference.TargetProgram,
    starter: "starters.Starter",
    output: Path | None,
) -> dict[str, Any]:
    """Return the accelerate YAML that names the starter config; {} for other programs.

    It has the entries of --accelerate-config, except those that the config replaces.
    """
    if target.runtime.name != ACCELERATE:
        return {}
    stage = value_at(starter.config, STAGE)
    gpus, nodes = facts.world_size or 1, facts.nodes or 1
    config = str(output or "ds.json")
    divided = starter.set_elsewhere.get(SEQUENCE)
    return launch_file.naming(
        config, stage, gpus=gpus, nodes=nodes, launch=facts.launch, sequences=divided
    )


def _next_steps(
    output: Path,
    starter: "starters.Starter",
    request: FactsRequest,
    target: inference.TargetProgram,
) -> list[str]:
    """Return the lines about the file written: commands that check and estimate it."""
    program = () if _is_for_all(target) else ("--runtime", target.runtime.name)
    lines = [
        f"wrote {output}; check it with `{writers.shell(_command('validate', output, program))}`"
    ]
    if starter.host_bytes:
        own = _as_flags(request)
        command = _command("estimate", output, (*own, *starter.estimate_flags, *program))
        lines.append(f"memory per component: `{writers.shell(command)}`")
    return lines


def _command(name: str, file: Path, flags: Iterable[str]) -> list[str]:
    return ["dsconfig", name, str(file), *flags]


def _as_flags(request: FactsRequest) -> list[str]:
    """Return the facts as flags of ``estimate``, without those in the file."""
    stated = {**request.stated, **options.project_facts(request, None)}
    listed: list[str] = []
    for name, value in stated.items():
        if name not in IN_FILE:
            listed += [flag_of(name), str(value)]
    return listed


IN_FILE = ("learning_rate", "global_batch", "micro_batch", "precision", "accelerate_config")
"""Flags whose values the file contains, or the accelerate config that goes with it."""


def _check(text: str, facts: "Facts", target: inference.TargetProgram) -> None:
    """Raise UsageError if no starter is valid under the facts, such as invalid arguments."""
    program = None if _is_for_all(target) else target.runtime
    document = dsconfig.read(text, name="starter config")
    report = examination.findings(document, facts, program, target.runtime.version)
    for finding in report.diagnostics:
        if finding.severity is not Severity.INFO:
            cause = f"{finding.code}: {finding.message}"
            raise UsageError(f"{cause}; {finding.help}" if finding.help else cause)


FOR_ALL = (
    "target: every program (choose one with --runtime). The Trainer requires the same values in "
    'TrainingArguments; with --runtime transformers, the file contains "auto" for them.'
)

"""What is taken where nobody said anything, or where file and flags differ, and told on standard
error each time."""

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from dsconfig.batch import GLOBAL, KEYS, MICRO, STEPS
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import AUTO, SCRIPT
from dsconfig.schema.schedules import TOTAL
from dsconfig.source.pointer import is_block

with lazy_imports():
    from dsconfig.commands import inference, text_table
    from dsconfig.facts import training as runs
    from dsconfig.runtimes import degrees

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.facts.training import TrainingFacts
    from dsconfig.runtimes.base import Runtime
    from dsconfig.runtimes.effective import Effective
    from dsconfig.source import Document

PRECISIONS = ("bf16.enabled", "fp16.enabled")


def say(text: str) -> None:
    """One assumption or remark, wrapped, on standard error."""
    typer.echo(text_table.paragraph(text), err=True)


def stages_of_file(document: "Document", facts: "Facts", program: "Runtime") -> "Facts":
    """The facts with the stages of a pipeline that the file names and DeepSpeed does not read."""
    config: object = document.value
    if not program.runs_deepspeed or facts.pipeline_parallel > 1 or not is_block(config):
        return facts
    stages = degrees.stages_of(config)
    group = stages * facts.tensor_parallel * facts.sequence_parallel
    if stages == 1 or facts.world_size is None:
        return facts
    if facts.world_size % group:
        say(
            f"note: pipeline.stages is {stages}, and {facts.world_size} ranks cannot be split so: "
            "taken as one stage (--pipeline-parallel)"
        )
        return facts
    say(
        f"assumed: {stages} stages of a pipeline, as pipeline.stages says; DeepSpeed does not read "
        "it, PipelineModule has to be given them (--pipeline-parallel)"
    )
    return replace(facts, pipeline_parallel=stages)


def usual_precision(document: "Document", facts: "Facts", program: "Runtime") -> "Facts":
    """The facts with bf16 (fp16 on an older card) where the program takes the precision from
    arguments that nobody gave: left alone it would train in fp32, which hardly anybody means.
    """
    known = facts.training is not None and facts.training.precision is not None
    filled = set(inference.filled_by(program, document.value))
    given = facts.origins.keys() & {"training", "launch"}
    if known or given or filled.isdisjoint(PRECISIONS):
        return facts
    bf16 = (facts.device is None or facts.device.bf16) and "bf16.enabled" in filled
    name = "bf16" if bf16 else "fp16"
    step = program.instructions({f"/{name}/enabled": True}, {})[0]
    say(f"assumed: {step}, which nobody gave; without it this trains in fp32 (--precision)")
    origins = {**facts.origins, "precision": runs.PRECISION_FLAG}
    training = replace(_training(facts), precision=name)
    return replace(facts, training=training, origins=origins)


def one_sample(document: "Document", facts: "Facts", program: "Runtime") -> "Facts":
    """The facts with one sample per batch where that is up to a script's data loaders."""
    training = _training(facts)
    is_open = MICRO in inference.filled_by(program, document.value)
    at = program.set_elsewhere.get(f"/{MICRO}")
    if not is_open or training.micro_batch_size or at is None or at.where != SCRIPT:
        return facts
    step = program.instructions({f"/{MICRO}": 1}, {MICRO: AUTO})[0]
    say(f"assumed: {step}, which nobody gave (--micro-batch)")
    return replace(facts, training=replace(training, micro_batch_size=1))


def as_in_the_file(document: "Document", facts: "Facts", program: "Runtime") -> "Facts":
    """The facts with the arguments that go with the file, where nobody gave any: a program that
    compares the two stops at a default that nobody means. How many steps there will be is no part
    of an estimate, and is taken in silence.
    """
    config: object = document.value
    if facts.origins.keys() & {"training", "launch"} or not is_block(config):
        return facts
    training = _training(facts)
    if training.total_steps is None and TOTAL in inference.filled_by(program, config):
        training = replace(training, total_steps=1000)
    if program.compares_arguments:
        asked = runs.asked_by(config, facts.data_parallel or 1)
        said = {name: value for name, value in asked.items() if name not in _flags(training)}
        if said:
            text = ", ".join(f"{name}={value!r}" for name, value in said.items())
            say(f"assumed: {text} in TrainingArguments, as in the file; nobody gave them")
        training = replace(training, arguments={**said, **training.arguments})
    return replace(facts, training=training)


def _flags(training: "TrainingFacts") -> set[str]:
    """The arguments that were given by a flag of their own."""
    given = {
        "per_device_train_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "learning_rate": training.learning_rate,
        "warmup_steps": training.warmup_steps,
        "bf16": training.precision,
        "fp16": training.precision,
    }
    return {name for name, value in given.items() if value is not None}


def one_pass(document: "Document", facts: "Facts", program: "Runtime") -> "Facts":
    """The facts with one pass per step where our resolver is to settle a batch whose size nobody
    gave: a global batch of micro batch x GPUs.
    """
    config: object = document.value
    if program.fills_auto or not is_block(config):
        return facts
    training = _training(facts)
    is_open = any(config.get(key) == AUTO for key in KEYS)
    in_file = any(config.get(key, AUTO) != AUTO for key in (GLOBAL, STEPS))
    if not is_open or in_file or training.global_batch_size or training.gradient_accumulation_steps:
        return facts
    say("assumed: a global batch of micro batch x GPUs, which nobody gave (--global-batch)")
    return replace(facts, training=replace(training, gradient_accumulation_steps=1))


FOR_AN_ESTIMATE = (stages_of_file, usual_precision, as_in_the_file, one_sample, one_pass)
"""In their order: each sees what those before it have assumed."""


def say_fp32(effective: "Effective", document: "Document", program: "Runtime") -> None:
    """One line where training in fp32 is nobody's decision."""
    config: object = document.value
    if str(effective.numerics.precision) != "fp32" or not is_block(config):
        return
    blocks = [config.get(name) for name in ("bf16", "fp16", "torch_autocast")]
    said = [block.get("enabled") for block in blocks if is_block(block)]
    if AUTO in said:
        step = program.instructions({"/bf16/enabled": True}, config)[0]
        say(f"note: this trains in fp32, since nobody gave a precision: set {step}")
    elif not said:
        say('note: this trains in fp32: the config has neither "bf16" nor "fp16"')


def say_idle_flags(effective: "Effective", facts: "Facts") -> None:
    """One line for each flag whose value is not the one of the config: the file holds."""
    training, batch = facts.training, effective.batch
    if training is None:
        return
    if batch is not None:
        for flag, key, value, held in (
            ("--micro-batch", MICRO, training.micro_batch_size, batch.micro_batch),
            ("--global-batch", GLOBAL, training.global_batch_size, batch.global_batch),
            ("--accumulation", STEPS, training.gradient_accumulation_steps, batch.accumulation),
        ):
            if value is not None and value != held:
                _say_idle(flag, value, f"{key} is {held}", f"{key}={value}")
    precision = training.precision
    now = str(effective.numerics.precision)
    if precision is not None and precision != now:
        switches = {now: "false", precision: "true"}
        change = " --set ".join(f"{n}.enabled={to}" for n, to in switches.items() if n != "fp32")
        _say_idle("--precision", precision, f"the config trains in {now}", change)


def _say_idle(flag: str, value: object, held: str, change: str) -> None:
    typer.echo(f"{flag} {value} has no effect: {held}. To change it: --set {change}", err=True)


def _training(facts: "Facts") -> "TrainingFacts":
    return facts.training or runs.TrainingFacts()

"""Assumptions for facts that are not specified, and notes on flags without effect (on stderr)."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from dsconfig import api
from dsconfig.batch import GLOBAL, KEYS, MICRO, STEPS
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import AUTO, SCRIPT
from dsconfig.source.pointer import is_block, value_at

with lazy_imports():
    from dsconfig.commands import notes, text_table
    from dsconfig.cost import estimator
    from dsconfig.facts import trainer_fields
    from dsconfig.facts import training as runs
    from dsconfig.project import inference, neighbours
    from dsconfig.runtimes import degrees, integrations

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.facts.training import TrainingFacts
    from dsconfig.runtimes.base import Runtime
    from dsconfig.runtimes.effective import Batch, Effective
    from dsconfig.source import Document

PRECISIONS = ("bf16.enabled", "fp16.enabled")


_collectors: list[list[str]] = []


@contextmanager
def collected() -> Generator[list[str]]:
    """Collect the assumptions that are printed in the block."""
    texts: list[str] = []
    _collectors.append(texts)
    try:
        yield texts
    finally:
        _collectors.remove(texts)


def note(text: str) -> None:
    """Print a wrapped note to stderr."""
    for texts in _collectors:
        texts.append(text)
    notes.note(text_table.paragraph(text))


def pipeline_stages(document: "Document", facts: "Facts", program: "Runtime") -> "Facts":
    """Assume the pipeline stages of the file, which DeepSpeed itself does not read."""
    config: object = document.value
    if not program.runs_deepspeed or facts.degrees.pipeline > 1 or not is_block(config):
        return facts
    stages = degrees.stages_of(config)
    divided = replace(facts.degrees, pipeline=stages)
    if stages == 1 or facts.world_size is None:
        return facts
    if not divided.divide(facts.world_size):
        note(
            f"note: pipeline.stages={stages} does not divide {facts.world_size} ranks; assuming "
            "one stage (--pipeline-parallel)"
        )
        return facts
    note(
        f"assuming {stages} pipeline stages (pipeline.stages); DeepSpeed does not read this key: "
        "pass num_stages to PipelineModule (--pipeline-parallel)"
    )
    return replace(facts, degrees=divided)


def usual_precision(document: "Document", facts: "Facts", program: "Runtime") -> "Facts":
    """Assume bf16 (fp16 on older GPUs) if the program reads the precision from its arguments.

    Without it the program would train in fp32, which is rarely intended.
    """
    known = facts.training is not None and facts.training.precision is not None
    filled = set(inference.filled_by(program, document.value))
    specified = facts.origins.keys() & {"training", "launch"}
    if known or specified or filled.isdisjoint(PRECISIONS):
        return facts
    bf16_first = facts.device is None or facts.device.bf16
    names = ("bf16", "fp16") if bf16_first else ("fp16", "bf16")
    possible = [name for name in names if f"{name}.enabled" in filled]
    possible += [name for name in names if value_at(document.value, f"{name}.enabled") is True]

    def with_precision(name: str) -> "Facts":
        origins = {**facts.origins, "precision": runs.PRECISION_FLAG}
        training = replace(_training(facts), precision=name)
        return replace(facts, training=training, origins=origins)

    def refusals(name: str) -> int:
        assumed = matching_arguments(document, with_precision(name), program, quiet=True)
        return len(api.check(document, assumed, runtime=program).refusals)

    name = min(possible, key=refusals) if len(possible) > 1 else possible[0]
    step = program.instructions({f"/{name}/enabled": True}, {})[0]
    note(f"assuming {step} (not specified); the default is fp32 (--precision)")
    return with_precision(name)


def width_of_count(document: "Document", facts: "Facts", program: "Runtime") -> "Facts":
    """Assume the width of the model behind a parameter count, if the program reads it."""
    model = facts.model
    filled = inference.filled_by(program, document.value)
    if model is None or not model.assumed or model.config or model.hidden_size is None:
        return facts
    if not program.fills_auto or set(integrations.BY_WIDTH).isdisjoint(filled):
        return facts
    width = model.hidden_size
    note(f"assuming hidden_size={width} for the bucket sizes (not specified; --model)")
    return replace(facts, model=replace(model, config=MappingProxyType({"hidden_size": width})))


def one_sample(document: "Document", facts: "Facts", program: "Runtime") -> "Facts":
    """Assume one sample per batch if the script's data loader determines it."""
    training = _training(facts)
    is_open = MICRO in inference.filled_by(program, document.value)
    at = program.set_elsewhere.get(f"/{MICRO}")
    if not is_open or training.micro_batch_size or at is None or at.where != SCRIPT:
        return facts
    step = program.instructions({f"/{MICRO}": 1}, {MICRO: AUTO})[0]
    note(f"assuming {step} (not specified; --micro-batch)")
    return replace(facts, training=replace(training, micro_batch_size=1))


def matching_arguments(
    document: "Document", facts: "Facts", program: "Runtime", *, quiet: bool = False
) -> "Facts":
    """Assume TrainingArguments that match the file if none are specified.

    A program that compares both would reject its own defaults. The number of steps does not
    affect an estimate, so it is assumed without a note.
    """
    config: object = document.value
    if not is_block(config):
        return facts
    training = _training(facts)
    if training.total_steps is None:
        training = replace(training, total_steps=runs.total_steps_of(config) or 1000)
    if program.compares_arguments and not facts.origins.keys() & {"training", "launch"}:
        required = runs.arguments_for(config, facts.data_parallel or 1)
        added = {name: value for name, value in required.items() if name not in _flags(training)}
        if added and not quiet:
            text = ", ".join(f"{name}={value!r}" for name, value in added.items())
            note(f"assuming {text} in TrainingArguments (not specified), to match the file")
        training = replace(training, arguments={**added, **training.arguments})
    return replace(facts, training=training)


def _flags(training: "TrainingFacts") -> set[str]:
    """Return the TrainingArguments that were specified by a flag."""
    values = {
        "per_device_train_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "learning_rate": training.learning_rate,
        "warmup_steps": training.warmup_steps,
        "bf16": training.precision,
        "fp16": training.precision,
    }
    return {name for name, value in values.items() if value is not None}


def no_accumulation(document: "Document", facts: "Facts", program: "Runtime") -> "Facts":
    """Assume global batch = micro batch x GPUs if dsengine resolves an unspecified batch size."""
    config: object = document.value
    if program.fills_auto or not is_block(config):
        return facts
    training = _training(facts)
    is_open = any(config.get(key) == AUTO for key in KEYS)
    in_file = any(config.get(key, AUTO) != AUTO for key in (GLOBAL, STEPS))
    if not is_open or in_file or training.global_batch_size or training.gradient_accumulation_steps:
        return facts
    note("assuming global batch = micro batch x GPUs (not specified; --global-batch)")
    origins = {**facts.origins, "accumulation": runs.ASSUMED}
    training = replace(training, gradient_accumulation_steps=1)
    return replace(facts, training=training, origins=origins)


FOR_AN_ESTIMATE = (
    pipeline_stages,
    width_of_count,
    usual_precision,
    matching_arguments,
    one_sample,
    no_accumulation,
)
"""Applied in this order: each sees the assumptions before it."""


def note_unintended_fp32(
    effective: "Effective", document: "Document", program: "Runtime", facts: "Facts"
) -> None:
    """Print a note if the run trains in fp32 only because no precision was specified."""
    config: object = document.value
    if str(effective.numerics.precision) != "fp32" or not is_block(config):
        return
    blocks = [config.get(name) for name in ("bf16", "fp16", "torch_autocast")]
    switches = [block.get("enabled") for block in blocks if is_block(block)]
    named = facts.training is not None and facts.training.precision not in (None, "fp32")
    if AUTO in switches and not named:
        step = program.instructions({"/bf16/enabled": True}, config)[0]
        note(f"note: trains in fp32 because no precision is specified; set {step}")
    elif not switches:
        note('note: trains in fp32 because the config has neither "bf16" nor "fp16"')


def note_not_estimated(effective: "Effective", facts: "Facts") -> None:
    """Print a note for each key whose effect is not estimated."""
    for key in estimator.not_estimated(effective, facts):
        note(f"note: {key} is not estimated: the model is not known to have experts")


def note_unread_arguments(target: "inference.TargetProgram", source: str, facts: "Facts") -> None:
    """Print a note if the file of arguments that references the config was not read, or if names
    in the one that was are misspelled and the program does not report it."""
    if not target.runtime.compares_arguments:
        note_misspelled_arguments(facts)
    file = neighbours.named_reference(target.inferred_from)
    if file and target.runtime.compares_arguments and "training" not in facts.origins:
        path = Path(source).parent / file
        note(f"{path} was not read; add --training-args {path}")


def note_misspelled_arguments(facts: "Facts") -> None:
    """Print a note for each misspelled name of TrainingArguments."""
    file = facts.origins.get("training", "TrainingArguments")
    for name, closest in trainer_fields.misspelled_arguments(facts.arguments).items():
        note(f'{file}: {name} is not a TrainingArgument, and is ignored; did you mean "{closest}"?')


def note_ignored_flags(
    effective: "Effective", document: "Document", program: "Runtime", facts: "Facts"
) -> None:
    """Print a note for each flag that the config, or the program, overrides."""
    training, batch = facts.training, effective.batch
    if training is None:
        return
    if batch is not None:
        for flag, field, key, used in (
            ("--micro-batch", "micro_batch_size", MICRO, batch.micro_batch),
            ("--global-batch", "global_batch_size", GLOBAL, batch.global_batch),
            ("--accumulation", "gradient_accumulation_steps", STEPS, batch.accumulation),
        ):
            value = getattr(training, field)
            if value in (None, used) or facts.origins.get(field) != flag:
                continue
            if flag == "--global-batch" and _multiplies(document, program):
                _note_derived(value, batch, program)
            else:
                _note_ignored(flag, value, f"{key} is {used}", f"{key}={value}")
    precision = training.precision
    now = str(effective.numerics.precision)
    is_flag = facts.origins.get("precision") == runs.PRECISION_FLAG
    if is_flag and precision not in (None, now):
        switches = {now: "false", precision: "true"}
        change = " --set ".join(f"{n}.enabled={to}" for n, to in switches.items() if n != "fp32")
        _note_ignored("--precision", precision, f"the config trains in {now}", change)


def _multiplies(document: "Document", program: "Runtime") -> bool:
    """Return whether the program computes the global batch from arguments that it fills in."""
    config: object = document.value
    return (
        f"/{STEPS}" in program.set_elsewhere
        and is_block(config)
        and all(config.get(key, AUTO) == AUTO for key in (GLOBAL, STEPS))
    )


def _note_derived(wanted: int, batch: "Batch", program: "Runtime") -> None:
    """Print that the program derives the global batch, and how to get the wanted one."""
    steps, rest = divmod(wanted, batch.micro_batch * batch.data_parallel)
    change = f"--accumulation {steps}" if steps and not rest else "--micro-batch and --accumulation"
    notes.note(
        f"--global-batch {wanted} has no effect: {program.name} computes the global batch "
        f"({batch.micro_batch} x {batch.accumulation} x {batch.data_parallel} = "
        f"{batch.global_batch}); specify {change}, or --training-args"
    )


def _note_ignored(flag: str, value: object, reason: str, change: str) -> None:
    notes.note(f"{flag} {value} has no effect: {reason}; use --set {change}")


def _training(facts: "Facts") -> "TrainingFacts":
    return facts.training or runs.TrainingFacts()

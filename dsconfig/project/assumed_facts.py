"""Facts that an estimate assumes when they are not specified, each with a sentence about it."""

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from dsconfig import examination
from dsconfig.batch import GLOBAL, KEYS, STEPS
from dsconfig.facts.naming import named
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.base import AUTO, SCRIPT
from dsconfig.schema.paths import HALF_PRECISIONS, MICRO_BATCH
from dsconfig.source.pointer import is_block, value_at

with lazy_imports():
    from dsconfig.facts import training as runs
    from dsconfig.project import inference
    from dsconfig.runtimes import degrees, integrations

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.facts.training import TrainingFacts
    from dsconfig.runtimes.base import Runtime
    from dsconfig.source import Document

    Assumed = tuple[Facts, str]
    """The facts with what is assumed, and a sentence about it; empty if nothing is."""


def for_estimate(
    document: "Document", facts: "Facts", program: "Runtime"
) -> "tuple[Facts, list[str]]":
    """Return the facts with all assumptions, and a sentence about each."""
    sentences: list[str] = []
    for assume in _FOR_AN_ESTIMATE:
        facts, sentence = assume(document, facts, program)
        sentences.append(sentence)
    return facts, list(filter(None, sentences))


def pipeline_stages(document: "Document", facts: "Facts", program: "Runtime") -> "Assumed":
    """Assume the pipeline stages of the file, which DeepSpeed itself does not read."""
    config: object = document.value
    if not program.runs_deepspeed or facts.degrees.pipeline > 1 or not is_block(config):
        return facts, ""
    stages = degrees.stages_of(config)
    divided = replace(facts.degrees, pipeline=stages)
    if stages == 1 or facts.world_size is None:
        return facts, ""
    if not divided.divide(facts.world_size):
        return facts, (
            f"note: pipeline.stages={stages} does not divide {facts.world_size} ranks; assuming "
            f"one stage ({named('pipeline_parallel')})"
        )
    return replace(facts, degrees=divided), (
        f"assuming {stages} pipeline stages (pipeline.stages); DeepSpeed does not read this key: "
        f"pass num_stages to PipelineModule ({named('pipeline_parallel')})"
    )


def usual_precision(document: "Document", facts: "Facts", program: "Runtime") -> "Assumed":
    """Assume bf16 (fp16 on older GPUs) if the program reads the precision from its arguments.

    Without it the program would train in fp32, which is rarely intended.
    """
    known = facts.training is not None and facts.training.precision is not None
    filled = set(inference.filled_by(program, document.value))
    specified = facts.origins.keys() & {"training", "launch"}
    if known or specified or filled.isdisjoint(HALF_PRECISIONS.values()):
        return facts, ""
    bf16_first = facts.device is None or facts.device.bf16
    names = ("bf16", "fp16") if bf16_first else ("fp16", "bf16")
    possible = [name for name in names if HALF_PRECISIONS[name] in filled]
    possible += [name for name in names if value_at(document.value, HALF_PRECISIONS[name]) is True]

    def with_precision(name: str) -> "Facts":
        origins = {**facts.origins, "precision": named("precision")}
        training = replace(_training(facts), precision=name)
        return replace(facts, training=training, origins=origins)

    def refusals(name: str) -> int:
        assumed, _ = matching_arguments(document, with_precision(name), program)
        found = examination.findings(document, assumed, program, program.version)
        return len(found.refusals)

    name = min(possible, key=refusals) if len(possible) > 1 else possible[0]
    step = program.instructions({f"/{name}/enabled": True}, {})[0]
    return with_precision(name), (
        f"assuming {step} (not specified); the default is fp32 ({named('precision')})"
    )


def width_of_count(document: "Document", facts: "Facts", program: "Runtime") -> "Assumed":
    """Assume the width of the model behind a parameter count, if the program reads it."""
    model = facts.model
    filled = inference.filled_by(program, document.value)
    if model is None or not model.assumed or model.config or model.hidden_size is None:
        return facts, ""
    if not program.fills_auto or set(integrations.BY_WIDTH).isdisjoint(filled):
        return facts, ""
    width = model.hidden_size
    known = replace(model, config=MappingProxyType({"hidden_size": width}))
    return replace(facts, model=known), (
        f"assuming hidden_size={width} for the bucket sizes (not specified; {named('model')})"
    )


def one_sample(document: "Document", facts: "Facts", program: "Runtime") -> "Assumed":
    """Assume one sample per batch if the script's data loader determines it."""
    training = _training(facts)
    is_open = MICRO_BATCH in inference.filled_by(program, document.value)
    at = program.set_elsewhere.get(MICRO_BATCH.pointer)
    if not is_open or training.micro_batch_size or at is None or at.where != SCRIPT:
        return facts, ""
    step = program.instructions({MICRO_BATCH.pointer: 1}, {MICRO_BATCH.name: AUTO})[0]
    known = replace(training, micro_batch_size=1)
    return replace(
        facts, training=known
    ), f"assuming {step} (not specified; {named('micro_batch')})"


def matching_arguments(document: "Document", facts: "Facts", program: "Runtime") -> "Assumed":
    """Assume TrainingArguments that match the file if none are specified.

    A program that compares both would reject its own defaults. The number of steps does not
    affect an estimate, so it is assumed without a note.
    """
    config: object = document.value
    if not is_block(config):
        return facts, ""
    training, sentence = _training(facts), ""
    if training.total_steps is None:
        training = replace(training, total_steps=runs.total_steps_of(config) or 1000)
    if program.compares_arguments and not facts.origins.keys() & {"training", "launch"}:
        required = runs.arguments_for(config, facts.data_parallel or 1)
        added = {name: value for name, value in required.items() if name not in _flags(training)}
        if added:
            text = ", ".join(f"{name}={value!r}" for name, value in added.items())
            sentence = f"assuming {text} in TrainingArguments (not specified), to match the file"
        training = replace(training, arguments={**added, **training.arguments})
    return replace(facts, training=training), sentence


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


def no_accumulation(document: "Document", facts: "Facts", program: "Runtime") -> "Assumed":
    """Assume global batch = micro batch x GPUs if dsengine resolves an unspecified batch size."""
    config: object = document.value
    if program.fills_auto or not is_block(config):
        return facts, ""
    training = _training(facts)
    is_open = any(config.get(key) == AUTO for key in KEYS)
    in_file = any(config.get(key, AUTO) != AUTO for key in (GLOBAL, STEPS))
    if not is_open or in_file or training.global_batch_size or training.gradient_accumulation_steps:
        return facts, ""
    origins = {**facts.origins, "accumulation": runs.ASSUMED}
    known = replace(facts, training=replace(training, gradient_accumulation_steps=1))
    return replace(known, origins=origins), (
        f"assuming global batch = micro batch x GPUs (not specified; {named('global_batch')})"
    )


_FOR_AN_ESTIMATE = (
    pipeline_stages,
    width_of_count,
    usual_precision,
    matching_arguments,
    one_sample,
    no_accumulation,
)
"""Applied in this order: each sees the assumptions before it."""


def _training(facts: "Facts") -> "TrainingFacts":
    return facts.training or runs.TrainingFacts()

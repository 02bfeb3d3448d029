"""The template of ``dsconfig init``: what the search chooses, trimmed, with its reasons."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from dsconfig.commands.errors import UsageError, usage
from dsconfig.commands.program_file import for_program
from dsconfig.cost import search
from dsconfig.cost.activations import Recompute
from dsconfig.cost.choices import RECOMPUTED, recomputation_edits, recomputing_selectively
from dsconfig.facts import Facts
from dsconfig.facts.base_weights import BaseWeights
from dsconfig.runtimes.base import BASE_WEIGHTS, RECOMPUTATION, Runtime, format_instructions
from dsconfig.schema import AUTO, find
from dsconfig.schema.trainer_optimizers import trainer_optimizer
from dsconfig.source.ignores import REMARKS, SECTION
from dsconfig.source.pointer import join

ZERO = "zero_optimization"


@dataclass(frozen=True, slots=True)
class Starter:
    """A config with the reason for each choice, by pointer; ``title`` says what it is for."""

    title: str
    config: Mapping[str, Any]
    reasons: Mapping[str, str]
    beside: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values by pointer that the program sets elsewhere than in the file."""

    def for_program(self, program: Runtime) -> "Starter":
        """The starter with "auto" wherever the program has a value of its own."""
        made = for_program(program, self.config, self.beside)
        left = made.opened
        reasons = {pointer: why for pointer, why in self.reasons.items() if pointer not in left}
        opened = "filled in by " + program.name
        reasons |= dict.fromkeys(left, opened)
        title = f"{self.title}; set {format_instructions(made.steps)}" if made.steps else self.title
        return replace(self, title=title, config=made.config, reasons=reasons)


def skeleton(learning_rate: float, facts: Facts) -> dict[str, Any]:
    """Everything that a run on known hardware leaves open."""
    training = facts.training
    batch: dict[str, Any] = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": AUTO if training and training.global_batch_size else 1,
    }
    return batch | {
        "gradient_clipping": 1.0,
        "bf16": {"enabled": AUTO},
        "fp16": {"enabled": AUTO},
        ZERO: {
            "stage": AUTO,
            "offload_optimizer": {"device": AUTO},
            "offload_param": {"device": AUTO},
            "overlap_comm": AUTO,
            "reduce_bucket_size": AUTO,
            "allgather_bucket_size": AUTO,
            "stage3_prefetch_bucket_size": AUTO,
            "stage3_param_persistence_threshold": AUTO,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "optimizer": _optimizer(learning_rate),
        "scheduler": _scheduler(learning_rate),
        "steps_per_print": 100,
    }


def _optimizer(learning_rate: float) -> dict[str, Any]:
    """AdamW with its usual arguments, written out."""
    params: dict[str, Any] = {"lr": learning_rate}
    for name in ("betas", "eps", "weight_decay"):
        known = find(("optimizer", "params", name), of_type="AdamW")
        params[name] = known.default if known else None
    return {"type": "AdamW", "params": params}


def _scheduler(learning_rate: float) -> dict[str, Any]:
    params = {"warmup_min_lr": 0, "warmup_max_lr": learning_rate, "warmup_num_steps": 1000}
    return {"type": "WarmupLR", "params": params}


USUAL = {
    join("gradient_clipping"): "largest global norm of the gradients; written because the"
    " default changed in 0.19.3",
    join("optimizer"): "built by the engine; a script may pass its own instead",
    join("optimizer", "params", "lr"): "the schedule's peak stands beside it; keep them equal",
    join("scheduler"): "a rise, then a constant rate",
    join("scheduler", "params", "warmup_num_steps"): "a tenth of the run is plenty",
    RECOMPUTATION: "fits only, or is faster, with activations recomputed",
    join("steps_per_print"): "a progress line every so many optimizer steps",
    join(ZERO, "stage3_gather_16bit_weights_on_model_save"): "without it a stage-3 model is"
    " not saved whole",
}


def chosen(
    facts: Facts, learning_rate: float, program: Runtime, *, selective: bool = True
) -> Starter:
    """What the search chooses, recomputation with it. Raises UsageError when nothing fits, or a
    fact is missing.
    """
    import dsconfig

    config = skeleton(learning_rate, facts)
    if trainer_optimizer(facts.arguments) is not None:
        # A block would override ``optim``; a scheduler in the file requires an optimizer there.
        del config["optimizer"], config["scheduler"]
    with usage():
        found = search.fastest(search.open_space(facts, "dsengine", selective=selective)).chosen
    again = found.choice.recompute if found is not None else Recompute.NONE
    if again is Recompute.FULL:
        # The resolution below asks the engine, which obeys the block.
        config["activation_checkpointing"] = dict(RECOMPUTED)
    if again is Recompute.SELECTIVE:
        facts = recomputing_selectively(facts)
    resolution = dsconfig.resolve(config, facts, runtime="dsengine")
    if not resolution.ok:
        found = resolution.diagnostics[0]
        raise UsageError(f"{found.message}; {found.help}" if found.help else found.message)
    reasons = USUAL | {entry.pointer: entry.rule for entry in resolution.ledger}
    if facts.training and facts.training.global_batch_size:
        told = f"{facts.training.global_batch_size} samples per step on {facts.world_size} ranks"
        reasons[join("gradient_accumulation_steps")] = told
    config, beside = _trimmed(resolution.config), recomputation_edits(again)
    if again is Recompute.FULL:
        if program.recomputes_from_config:
            beside.clear()
        else:
            del config["activation_checkpointing"]
    if facts.base_weights == BaseWeights.FOUR_BIT:
        beside[BASE_WEIGHTS] = facts.base_weights
    model = f"{facts.model.name}{_adaptation(facts)}" if facts.model else "a model"
    device = facts.device.name if facts.device else "an unknown card"
    tokens = facts.training.sequence_length if facts.training else None
    title = f"{model} on {facts.world_size} x {device}, {tokens} tokens per sample"
    return Starter(title, config, reasons, beside)


def _adaptation(facts: Facts) -> str:
    """Return ``, adapters on 4bit base weights (...)``; "" if all parameters are trained."""
    if facts.model is None or facts.model.trainable == facts.model.parameters:
        return ""
    quantized = facts.base_weights and BaseWeights(facts.base_weights).label
    return f", adapters on {quantized}" if quantized else ", adapters on frozen weights"


def cautious(learning_rate: float) -> Starter:
    """A start for hardware that nobody named: bf16, stage 2, one sample at a time."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        ZERO: {
            "stage": 2,
            "overlap_comm": True,
            "reduce_bucket_size": 200_000_000,
            "allgather_bucket_size": 200_000_000,
        },
        "optimizer": _optimizer(learning_rate),
        "scheduler": _scheduler(learning_rate),
        "steps_per_print": 100,
    }
    reasons = USUAL | {
        join("train_micro_batch_size_per_gpu"): "raise it until memory is used",
        join("bf16", "enabled"): "cards before Ampere have no bf16: write fp16 there",
        join(ZERO, "stage"): "optimizer states and gradients sharded; 3 also shards parameters",
        join(ZERO, "reduce_bucket_size"): "3.6 GB for both buckets by the 4.5x rule",
    }
    return Starter(
        "a cautious start; name --model, --gpus and --device for a better one", config, reasons
    )


def _trimmed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without what has no effect: the other precision, offload to nowhere, keys of
    another stage; and without the global batch: the file then runs at any world size. (The
    steps stay, because accelerate takes an absent number for 1.)"""
    kept = {name: value for name, value in config.items() if value != {"enabled": False}}
    zero = cast(dict[str, Any], kept.get(ZERO, {}))
    if zero.get("stage") != 3:
        zero = {name: value for name, value in zero.items() if not name.startswith("stage3_")}
    else:
        zero = {name: value for name, value in zero.items() if name != "allgather_bucket_size"}
    del kept["train_batch_size"]
    if zero.get("stage") == 0:
        zero = {"stage": 0}
    kept[ZERO] = {name: value for name, value in zero.items() if value != {"device": "none"}}
    return kept


INDENT = "  "


def written(starter: Starter, *, hjson: bool) -> str:
    """The file. With ``hjson`` the reasons are // remarks, which transformers and accelerate
    do not read; without, they stand in our own section, which every program reads past."""
    if not hjson:
        config = {SECTION: _remarks(starter), **starter.config}
        return "\n".join(("{", *_entries(config, (), {}), "}")) + "\n"
    lines = [
        "{",
        f"{INDENT}// {starter.title}.",
        f"{INDENT}// `dsconfig explain KEY` says what a key does.",
        f"{INDENT}// For deepspeed and dsengine; transformers and accelerate read no such remarks.",
        "",
        *_entries(starter.config, (), starter.reasons),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _remarks(starter: Starter) -> dict[str, Any]:
    """What the config is for, and the reason for each choice by the key it is about."""
    remarks: dict[str, str] = {"this file": f"{starter.title}; see `dsconfig explain KEY`"}
    for path, value in _with_parts(starter.config, ()):
        reason = starter.reasons.get(join(*path)) if path else None
        if reason and reason not in remarks.values():
            remarks[AUTO if value == AUTO else ".".join(path)] = reason
    return {REMARKS: remarks}


def _with_parts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A value and all that it holds, outer ones first, with their paths."""
    yield path, value
    if isinstance(value, Mapping):
        for name, inner in cast(Mapping[str, Any], value).items():
            yield from _with_parts(inner, (*path, name))


def _entries(
    block: Mapping[str, Any], path: tuple[str, ...], reasons: Mapping[str, str]
) -> Iterator[str]:
    indent = INDENT * (len(path) + 1)
    last_reason = ""
    for position, (name, value) in enumerate(block.items()):
        comma = "," if position + 1 < len(block) else ""
        reason = reasons.get(join(*path, name), "")
        if reason and reason != last_reason:
            yield f"{indent}// {reason}"
        last_reason = reason
        if isinstance(value, Mapping):
            yield f"{indent}{json.dumps(name)}: {{"
            yield from _entries(cast(Mapping[str, Any], value), (*path, name), reasons)
            yield f"{indent}}}{comma}"
        else:
            yield f"{indent}{json.dumps(name)}: {json.dumps(value)}{comma}"

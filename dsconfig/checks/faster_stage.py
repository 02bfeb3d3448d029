"""The rule for small models that ZeRO does not help."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dsconfig.batch import GLOBAL, MICRO, STEPS
from dsconfig.checks.context import Context
from dsconfig.checks.registry import MODEL, rule
from dsconfig.checks.rule import Finding, reaches_deepspeed
from dsconfig.cost.choices import choice_of, with_choice
from dsconfig.cost.estimator import estimate_option
from dsconfig.cost.fit import verdict_on
from dsconfig.cost.step_time import step_time
from dsconfig.facts.facts import Facts
from dsconfig.mesh import UNDIVIDED
from dsconfig.report import Effect
from dsconfig.report.sizes import gib
from dsconfig.runtimes.base import AUTO
from dsconfig.runtimes.effective import Effective, Precision, Tier, effective
from dsconfig.schema.paths import STAGE
from dsconfig.source.pointer import is_block

FASTER = 0.98
"""Share of the step time below which a difference is reported: less is within the model's error."""
DIVIDING = ("tensor_parallel", "sequence_parallel_size", "pipeline", "expert_parallel")
"""Blocks with which ranks divide a sample or the model."""
STATES = 12
"""Bytes per trainable element of the optimizer states, which no rank shares at stage 0."""


@rule("DSC505", Effect.NOTE, triggers=MODEL, applies_to=reaches_deepspeed, last=True)
def stage_0_is_faster(config: Context) -> Iterator[Finding]:
    """A step is faster at stage 0, where the model also fits

    Sharding costs communication and, with offload, copies. If one GPU has room for all states,
    they buy nothing. Compared with the estimate of `dsconfig estimate` for both stages; model,
    GPUs, device and sequence length must be known (`--model`, `--gpus`, `--device`, `--seq-len`).
    fp16 is excluded, because recent releases do not scale the loss at stage 0 (DSC845).

    with: model="gpt2", gpus=2, device="rtx-4090", seq_len=512
    bad: {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, "optimizer": {"type":
        "AdamW", "params": {"lr": 0.0001}}, "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, "optimizer": {"type":
        "AdamW", "params": {"lr": 0.0001}}, "zero_optimization": {"stage": 0}}
    """
    facts, found = config.facts, _settings(config)
    if found is None or facts.model is None or facts.device_bytes is None:
        return
    choice = replace(
        choice_of(found, facts), stage=0, optimizer=Tier.DEVICE, parameters=Tier.DEVICE
    )
    unsharded = replace(found, zero=with_choice(found.zero, choice, facts))
    program = config.runtimes[0]
    now, then = (step_time(each, facts, runtime=program).seconds for each in (found, unsharded))
    if then > FASTER * now or facts.model.trainable * STATES > facts.device_bytes:
        return
    option = estimate_option(unsharded, facts, runtime=program)
    if verdict_on(option, unsharded, facts).has_headroom:
        room = f"{gib(option.device.visible_bytes, 1)} of {gib(facts.device_bytes, 1)}"
        yield Finding(
            path=STAGE,
            message=f"{facts.model.name} also fits at stage 0 ({room}), where a step takes an "
            f"estimated {then:.3g} s instead of {now:.3g} s",
            help="set stage to 0 and delete the offload blocks"
            if _offloads(found)
            else "set stage to 0",
            on_key=True,
        )


def _offloads(settled: Effective) -> bool:
    return settled.zero.offload_optimizer is not None or settled.zero.offload_param is not None


def _settings(config: Context) -> Effective | None:
    """Return the settings, or None if stage 0 cannot train them or a value is unknown."""
    facts = config.facts
    several = facts.world_size is not None and facts.world_size > 1 and facts.degrees == UNDIVIDED
    several &= not any(config.has(block) for block in DIVIDING)
    trains = config.since("0.19.0") and not config.is_optimizer("Muon")
    if config.is_refused or not config.stage or not config.stage_is_known:
        return None
    if not (several and trains and facts.sequence_length) or facts.on_cpu:
        return None
    values = _concrete(config.config, facts)
    try:
        settled = effective(values, facts, version=config.version) if values else None
    except ValueError:
        return None
    if settled is None or settled.batch is None:
        return None
    numerics = settled.numerics
    in_full = numerics.master_dtype is Precision.FP32 and "data_types" not in values
    return settled if in_full and numerics.precision is not Precision.FP16 else None


def _concrete(values: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """Return a config whose "auto" values are filled in by what determines time and memory; empty
    if one of those is unknown."""
    training = facts.training
    settled = _without_auto(values)
    if AUTO in (values.get(MICRO), values.get(STEPS), values.get(GLOBAL)):
        if training is None or training.micro_batch_size is None:
            return {}
        settled.pop(GLOBAL, None)
        settled[MICRO] = training.micro_batch_size
        settled[STEPS] = training.gradient_accumulation_steps or settled.get(STEPS, 1)
    for block in ("bf16", "fp16"):
        written = values.get(block)
        if is_block(written) and written.get("enabled") == AUTO:
            if training is None or training.precision is None:
                return {}
            settled[block] = {"enabled": training.precision == block}
    return settled


def _without_auto(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_auto(value) if is_block(value) else value
        for key, value in values.items()
        if value != AUTO
    }

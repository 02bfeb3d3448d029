"""Rules for known bugs of DeepSpeed releases with frozen weights, such as LoRA's base model."""

from collections.abc import Iterator, Mapping
from typing import Any

from dsconfig.checks.context import Context
from dsconfig.checks.fault import Evidence, FaultFinding, fault
from dsconfig.checks.registry import MODEL, TRAINING
from dsconfig.report import Effect
from dsconfig.schema.paths import ZERO
from dsconfig.schema.version import Version
from dsconfig.source.pointer import is_block

ADAPTER_KEYS: Mapping[str, tuple[Any, ...]] = {
    "adapter": ("lora", "qlora"),
    "finetuning_type": ("lora",),
    "train_type": ("lora",),
    "tuner_type": ("lora",),
    "use_peft": (True,),
}
"""Keys with which the YAML of axolotl, LLaMA-Factory, ms-swift (two names) and TRL chooses LoRA."""
NON_REENTRANT_SINCE = Version(5, 0, 0)
"""First release of transformers that recomputes without reentrant checkpoints by default."""


def trains_adapters(config: Context) -> bool:
    """Return whether most weights are frozen: by the model's facts, or by the YAML around it."""
    model = config.facts.model
    if model is not None and model.trainable < model.parameters:
        return True
    container = config.document.container or {}
    return any(container.get(key) in values for key, values in ADAPTER_KEYS.items())


def _reentrant(config: Context) -> bool | None:
    """Return whether the Trainer recomputes with reentrant checkpoints; None if unknown."""
    given = config.facts.arguments.get("gradient_checkpointing_kwargs")
    written = given.get("use_reentrant") if is_block(given) else None
    if isinstance(written, bool):
        return written
    release = config.facts.releases.get("transformers")
    return None if release is None else Version.parse(release) < NON_REENTRANT_SINCE


@fault(
    "DSC864",
    "0.8.0 to 0.19.2",
    "huggingface/transformers#47254, deepspeedai/DeepSpeed#8130",
    'use DeepSpeed 0.19.3 or later, or stage 2, or add "use_reentrant": true to '
    "gradient_checkpointing_kwargs",
    effect=Effect.REFUSED,
    stops="step CheckpointError",
    triggers=TRAINING,
    evidence=Evidence.ENDS,
    from_source="needs frozen weights that are recomputed, and a release up to 0.19.2",
)
def frozen_weights_recomputed(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed up to 0.19.2 cannot recompute frozen weights at stage 3 without reentrancy

    Recomputation frees a frozen weight before torch compares its shape with that of the forward
    pass: `CheckpointError: Recomputed values ... have different metadata`, shape `[0]`. Frozen
    weights are known from `--lora-rank` or from the trainer's YAML. transformers 5 and TRL use
    non-reentrant checkpoints by default.

    with: version="0.19.2", runtime="transformers", model="llama-2-7b", lora_rank=16,
        training_args={"per_device_train_batch_size": 1, "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    """
    recomputes = config.facts.execution.get("gradient_checkpointing") is True
    reentrant = _reentrant(config)
    if config.stage == 3 and recomputes and not reentrant and trains_adapters(config):
        behavior = "raise a CheckpointError if frozen weights are recomputed without reentrancy"
        yield FaultFinding(ZERO, behavior, certain=reentrant is False)


@fault(
    "DSC859",
    "0.19.2 to 0.19.2",
    "deepspeedai/DeepSpeed#8072",
    "use DeepSpeed 0.19.3 or later, or create the adapters with autocast_adapter_dtype=False",
    effect=Effect.NOTE,
    triggers=f"{MODEL} {TRAINING}",
    evidence=Evidence.ENDS,
)
def adapters_gathered_in_another_dtype(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.19.2 gathers fp32 adapters into 16-bit buffers at stage 3

    PEFT keeps LoRA adapters in fp32, and 0.19.2 no longer casts them. Small weights are gathered
    into buffers of the first one's dtype, which raises `TypeError: output tensor must have the same
    type as input tensor`. The model is set by `--model`, adapters by `--lora-rank`.

    with: version="0.19.2", model="llama-2-7b", lora_rank=8
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}
    """
    in_16_bits = config.bf16 or config.fp16
    if config.stage == 3 and in_16_bits and trains_adapters(config):
        behavior = "raise a TypeError if small adapters are fp32 and the base weights are not"
        yield FaultFinding(ZERO, behavior)

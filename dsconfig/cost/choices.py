"""Common choices of stage and offload, and the config usually written for each."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dsconfig.cost.activations import Recompute, is_flash, recompute_of
from dsconfig.cost.master_weights import master_keys, numerics_with, specified
from dsconfig.facts.base_weights import STAGE_3_WITHOUT
from dsconfig.facts.facts import Facts
from dsconfig.runtimes.base import RECOMPUTATION, SELECTIVE_RECOMPUTATION, Runtime
from dsconfig.runtimes.effective import (
    TIER_NAMES,
    Batch,
    Effective,
    Named,
    Numerics,
    Offload,
    Precision,
    Tier,
    Zero,
)
from dsconfig.schema.paths import STAGE, ZERO
from dsconfig.schema.trainer_optimizers import trainer_optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a search decides. ``buckets`` are the sizes it sets, by field of ``Zero``; they follow
    from the other fields."""

    stage: int
    optimizer: Tier = Tier.DEVICE
    parameters: Tier = Tier.DEVICE
    recompute: Recompute = Recompute.NONE
    micro_batch: int = 1
    accumulation: int = 1
    buckets: Mapping[str, int | bool] = field(
        default_factory=dict[str, "int | bool"], compare=False
    )

    @property
    def label(self) -> str:
        return f"stage {self.stage}{self.tiers}"

    @property
    def tiers(self) -> str:
        """Return the offload suffix of a label: ``, optimizer to CPU``."""
        text = offload_label(TIER_NAMES[self.optimizer], TIER_NAMES[self.parameters])
        return f", {text}" if text else ""

    @property
    def works(self) -> bool:
        """Return whether DeepSpeed supports it: optimizer offload needs stage 1, NVMe and parameter
        offload stage 3."""
        if self.parameters is not Tier.DEVICE:
            return self.stage == 3 and self.optimizer is not Tier.DEVICE
        lowest = {Tier.DEVICE: 0, Tier.HOST: 1, Tier.NVME: 3}
        return self.stage >= lowest[self.optimizer]


def supports_stage(facts: Facts, stage: int) -> bool:
    """Return whether the base weights and master weights are possible at this stage.

    DeepSpeed rejects bf16 master weights at stage 0 (DSC307).
    """
    if stage == 0:
        return specified(facts) != "bf16"
    return stage < 3 or facts.base_weights != STAGE_3_WITHOUT


def offload_label(optimizer: str, parameters: str) -> str:
    """Return ``optimizer + parameters to CPU`` for two tiers by name; "" if nothing is
    offloaded."""
    places = {"optimizer": optimizer, "parameters": parameters}
    left = {what: _TIER_LABELS[place] for what, place in places.items() if place != "none"}
    if len(set(left.values())) == 1:
        return f"{' + '.join(left)} to {next(iter(left.values()))}"
    return ", ".join(f"{what} to {where}" for what, where in left.items())


_TIER_LABELS = {"cpu": "CPU", "nvme": "NVMe"}
OPTIMIZER_BUFFERS, PARAMETER_BUFFERS = 4, 5
"""DeepSpeed's defaults of buffer_count."""

USUAL = (
    Choice(stage=0),
    Choice(stage=1),
    Choice(stage=1, optimizer=Tier.HOST),
    Choice(stage=2),
    Choice(stage=2, optimizer=Tier.HOST),
    Choice(stage=3),
    Choice(stage=3, optimizer=Tier.HOST),
    Choice(stage=3, optimizer=Tier.HOST, parameters=Tier.HOST),
    Choice(stage=3, optimizer=Tier.NVME, parameters=Tier.NVME),
)
"""The choices shown in a table, least sharded first."""


def usual_config(facts: Facts, choice: Choice) -> Effective:
    """Return mixed precision with overlap_comm on and every other key at its default.

    AdamW, unless TrainingArguments name the optimizer.
    """
    training = facts.training
    precision = Precision(training.precision) if training and training.precision else None
    if precision is None:
        bf16 = facts.device is None or facts.device.bf16
        precision = Precision.BF16 if bf16 else Precision.FP16
    micro = (training.micro_batch_size if training else None) or 1
    accumulation = (training.gradient_accumulation_steps if training else None) or 1
    config = Effective(
        batch=None,
        zero=with_choice(Zero(overlap_comm=True), choice, facts),
        numerics=numerics_with(
            Numerics(
                precision=precision, grad_accum_dtype=precision, communication_dtype=precision
            ),
            specified(facts),
        ),
        optimizer=None if trainer_optimizer(facts.arguments) else Named(type="AdamW"),
    )
    return with_micro_batch(config, micro, accumulation, facts.data_parallel or 1)


def with_choice(zero: Zero, choice: Choice, facts: Facts) -> Zero:
    """Return the block with another stage, other tiers and buckets.

    Other settings of a tier are kept, except a swap buffer smaller than a rank's shard of the
    largest tensor (DSC503).
    """
    optimizer = zero.offload_optimizer or Offload(tier=Tier.HOST, buffer_count=OPTIMIZER_BUFFERS)
    parameters = zero.offload_param or Offload(tier=Tier.HOST, buffer_count=PARAMETER_BUFFERS)
    if choice.parameters is Tier.NVME and facts.model is not None:
        largest = -(-(facts.model.largest_tensor or 0) // (facts.world_size or 1))
        parameters = replace(parameters, buffer_size=max(parameters.buffer_size, largest))
    return replace(
        zero,
        stage=choice.stage,
        offload_optimizer=_offload_to(optimizer, choice.optimizer, facts),
        offload_param=_offload_to(parameters, choice.parameters, facts),
        **choice.buckets,
    )


def _offload_to(offload: Offload, tier: Tier, facts: Facts) -> Offload | None:
    if tier is Tier.DEVICE:
        return None
    known = facts.host.nvme_path if facts.host else None
    path = offload.nvme_path or known if tier is Tier.NVME else None
    return replace(offload, tier=tier, nvme_path=path)


def choice_of(effective: Effective, facts: Facts) -> Choice:
    """Return the choice made in a config."""
    zero, batch = effective.zero, effective.batch
    return Choice(
        stage=zero.stage,
        optimizer=zero.optimizer_tier,
        parameters=zero.parameter_tier,
        recompute=recompute_of(effective, facts),
        micro_batch=batch.micro_batch if batch else 1,
        accumulation=batch.accumulation if batch else 1,
    )


def with_micro_batch(
    effective: Effective,
    micro: int,
    accumulation: int | None = None,
    data_parallel: int | None = None,
) -> Effective:
    """Return the config with another micro batch; the global batch follows unless ``accumulation``
    is given."""
    ranks = data_parallel or (effective.batch.data_parallel if effective.batch else 1)
    steps = accumulation or (effective.batch.accumulation if effective.batch else 1)
    batch = Batch(
        global_batch=micro * steps * ranks,
        micro_batch=micro,
        accumulation=steps,
        data_parallel=ranks,
    )
    return replace(effective, batch=batch)


def with_recomputation(effective: Effective, enabled: bool = True) -> Effective:
    """Return the config with every block recomputed in backward, or none."""
    settings = replace(effective.activation_checkpointing, enabled=enabled)
    return replace(effective, activation_checkpointing=settings)


def recomputing_selectively(facts: Facts) -> Facts:
    """Return facts in which the script keeps attention and every other matrix product."""
    return facts.with_execution({"gradient_checkpointing": Recompute.SELECTIVE.value})


def can_select(facts: Facts, runtime: Runtime) -> bool:
    """Return whether the program's scripts can use the selective policy of the estimate, which is
    not that of eager attention."""
    known = facts.architecture is not None and is_flash(facts)
    return known and runtime.recomputes_selectively


RECOMPUTED: Mapping[str, Any] = {"partition_activations": False}
"""The block activation_checkpointing that enables recomputation and nothing else."""


def recomputation_edits(recompute: Recompute) -> dict[str, Any]:
    """Return the values by pointer that enable it."""
    edits: dict[Recompute, dict[str, Any]] = {
        Recompute.SELECTIVE: {SELECTIVE_RECOMPUTATION: True},
        Recompute.FULL: {RECOMPUTATION: dict(RECOMPUTED)},
    }
    return edits.get(recompute, {})


def choice_edits(zero: Zero) -> dict[str, Any]:
    """Return the values by pointer that set this stage and these tiers."""
    edits: dict[str, Any] = {STAGE.pointer: zero.stage}
    blocks = {"offload_optimizer": zero.offload_optimizer, "offload_param": zero.offload_param}
    for key, offload in blocks.items():
        if offload is not None and offload.tier is not Tier.DEVICE:
            block: dict[str, Any] = {
                "device": TIER_NAMES[offload.tier],
                "pin_memory": offload.pin_memory,
            }
            if offload.nvme_path:
                block["nvme_path"] = offload.nvme_path
            if (
                offload.tier is Tier.NVME
                and offload.buffer_size > Offload(tier=Tier.NVME).buffer_size
            ):
                block["buffer_size"] = offload.buffer_size
            edits[(ZERO / key).pointer] = block
    return edits


def config_of(effective: Effective, *, recomputes: bool = True) -> dict[str, Any]:
    """Return the config as a file: the user's own with this batch, or a minimal one.

    ``recomputes``: whether the target program recomputes blocks when the file enables it.
    """
    batch: dict[str, Any] = {}
    if effective.batch is not None:
        batch["train_micro_batch_size_per_gpu"] = effective.batch.micro_batch
        batch["gradient_accumulation_steps"] = effective.batch.accumulation
    if effective.config:
        # The global batch follows from these two and the number of ranks.
        own = {key: value for key, value in effective.config.items() if key != "train_batch_size"}
        return {**own, **batch}
    precision = str(effective.numerics.precision)
    optimizer = {"type": "AdamW", "params": {"lr": 1e-5}}
    config: dict[str, Any] = {
        **batch,
        **({"optimizer": optimizer} if effective.optimizer else {}),
        "gradient_clipping": 1.0,
        ZERO.name: _zero_block(effective.zero),
    }
    if precision != "fp32":
        config[precision] = {"enabled": True, **master_keys(effective.numerics)}
    if effective.activation_checkpointing.enabled and recomputes:
        config["activation_checkpointing"] = dict(RECOMPUTED)
    return config


def _zero_block(zero: Zero) -> dict[str, Any]:
    """Return stage, offload and buckets; only keys with an effect at this stage."""
    block = {pointer.rpartition("/")[2]: value for pointer, value in choice_edits(zero).items()}
    if zero.stage:
        block |= {
            "overlap_comm": zero.overlap_comm,
            "contiguous_gradients": True,
            "reduce_bucket_size": zero.reduce_bucket_size,
        }
    if zero.stage == 3:
        block |= {
            "stage3_prefetch_bucket_size": zero.prefetch_bucket_size,
            "stage3_param_persistence_threshold": zero.param_persistence_threshold,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    elif zero.stage:
        block["allgather_bucket_size"] = zero.allgather_bucket_size
    return block

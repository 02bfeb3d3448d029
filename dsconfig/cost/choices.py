"""The usual choices of stage and offload, and the config a person would write for each."""

from dataclasses import dataclass, replace
from typing import Any

from dsconfig.facts.facts import Facts
from dsconfig.runtimes.effective import (
    ActivationCheckpointing,
    Batch,
    Effective,
    Named,
    Numerics,
    Offload,
    Precision,
    Tier,
    Zero,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A stage with the tiers of optimizer states and parameters."""

    stage: int
    optimizer: Tier = Tier.DEVICE
    params: Tier = Tier.DEVICE

    @property
    def label(self) -> str:
        places = {Tier.HOST: "CPU", Tier.NVME: "NVMe"}
        parts = [f"stage {self.stage}"]
        if self.optimizer is not Tier.DEVICE:
            what = "optimizer + parameters" if self.params is self.optimizer else "optimizer"
            parts.append(f"{what} to {places[self.optimizer]}")
        if self.params not in (Tier.DEVICE, self.optimizer):
            parts.append(f"parameters to {places[self.params]}")
        return ", ".join(parts)


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
    Choice(stage=3, optimizer=Tier.HOST, params=Tier.HOST),
    Choice(stage=3, optimizer=Tier.NVME, params=Tier.NVME),
)
"""In order of expected step time, fastest first."""


def usual_config(facts: Facts, choice: Choice, *, micro_batch: int | None = None) -> Effective:
    """Mixed-precision AdamW with overlap_comm on and every other key at its default."""
    training = facts.training
    precision = Precision(training.precision) if training and training.precision else None
    if precision is None:
        bf16 = facts.device is None or facts.device.bf16
        precision = Precision.BF16 if bf16 else Precision.FP16
    micro = micro_batch or (training.micro_batch_size if training else None) or 1
    accumulation = (training.gradient_accumulation_steps if training else None) or 1
    ranks = facts.data_parallel or 1
    return Effective(
        batch=Batch(
            global_batch=micro * accumulation * ranks,
            micro_batch=micro,
            accumulation=accumulation,
            data_parallel=ranks,
        ),
        zero=with_choice(Zero(overlap_comm=True), choice, facts),
        numerics=Numerics(
            precision=precision, grad_accum_dtype=precision, communication_dtype=precision
        ),
        optimizer=Named(type="AdamW"),
    )


def with_choice(zero: Zero, choice: Choice, facts: Facts) -> Zero:
    """The block with another stage and other tiers; what does not apply any more is dropped."""
    path = facts.host.nvme_path if facts.host else None

    def offload(tier: Tier, count: int) -> Offload | None:
        if tier is Tier.DEVICE:
            return None
        nvme_path = path if tier is Tier.NVME else None
        return Offload(tier=tier, nvme_path=nvme_path, buffer_count=count)

    return replace(
        zero,
        stage=choice.stage,
        offload_optimizer=offload(choice.optimizer, OPTIMIZER_BUFFERS),
        offload_param=offload(choice.params, PARAMETER_BUFFERS),
    )


def choice_of(effective: Effective) -> Choice:
    """What a config has chosen."""
    zero = effective.zero
    return Choice(stage=zero.stage, optimizer=zero.optimizer_tier, params=zero.parameter_tier)


def with_micro_batch(
    effective: Effective, micro: int, accumulation: int | None = None
) -> Effective:
    """Another micro batch; the global batch follows unless ``accumulation`` is given."""
    ranks = effective.batch.data_parallel if effective.batch else 1
    steps = accumulation or (effective.batch.accumulation if effective.batch else 1)
    batch = Batch(
        global_batch=micro * steps * ranks,
        micro_batch=micro,
        accumulation=steps,
        data_parallel=ranks,
    )
    return replace(effective, batch=batch)


def with_recomputation(effective: Effective) -> Effective:
    """The same config with every block rebuilt in backward."""
    return replace(effective, activation_checkpointing=ActivationCheckpointing(enabled=True))


_NAMES = {Tier.HOST: "cpu", Tier.NVME: "nvme"}


def choice_edits(zero: Zero) -> dict[str, Any]:
    """Values by pointer that turn a config to this stage and these tiers."""
    edits: dict[str, Any] = {"/zero_optimization/stage": zero.stage}
    blocks = {"offload_optimizer": zero.offload_optimizer, "offload_param": zero.offload_param}
    for key, offload in blocks.items():
        if offload is not None and offload.tier is not Tier.DEVICE:
            edits[f"/zero_optimization/{key}"] = _block(offload)
    return edits


def _block(offload: Offload) -> dict[str, Any]:
    path = {"nvme_path": offload.nvme_path} if offload.nvme_path else {}
    return {"device": _NAMES[offload.tier], "pin_memory": offload.pin_memory, **path}


def config_of(effective: Effective) -> dict[str, Any]:
    """The config as a file: the user's own with this batch, or one as a person would write it."""
    batch: dict[str, Any] = {}
    if effective.batch is not None:
        batch["train_micro_batch_size_per_gpu"] = effective.batch.micro_batch
        batch["gradient_accumulation_steps"] = effective.batch.accumulation
    if effective.config:
        # The global batch follows from these two and the number of ranks.
        own = {key: value for key, value in effective.config.items() if key != "train_batch_size"}
        return {**own, **batch}
    precision = str(effective.numerics.precision)
    config: dict[str, Any] = {
        **batch,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "gradient_clipping": 1.0,
        "zero_optimization": _zero_block(effective.zero),
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    if effective.activation_checkpointing.enabled:
        config["activation_checkpointing"] = {"partition_activations": False}
    return config


def _zero_block(zero: Zero) -> dict[str, Any]:
    """Stage, offload and buckets; only what has an effect at this stage."""
    block = {pointer.rpartition("/")[2]: value for pointer, value in choice_edits(zero).items()}
    if zero.stage:
        block |= {
            "overlap_comm": zero.overlap_comm,
            "contiguous_gradients": True,
            "reduce_bucket_size": zero.reduce_bucket_size,
        }
    if zero.stage == 3:
        block["stage3_gather_16bit_weights_on_model_save"] = True
    elif zero.stage:
        block["allgather_bucket_size"] = zero.allgather_bucket_size
    return block

"""A choice as it stands in a ds_config: single edits, or a whole file."""

from typing import Any

from dsconfig.runtimes.effective import Effective, Offload, Tier, Zero

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

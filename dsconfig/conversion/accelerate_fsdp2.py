"""accelerate's YAML for FSDP2, with the parallel degrees."""

from collections.abc import Collection
from typing import Any

from dsconfig.conversion.unconverted import (
    comment_lines,
    offload_patterns,
    tensor_degree,
    unconverted,
)
from dsconfig.facts import parallelism
from dsconfig.project import launch_file
from dsconfig.report import writers
from dsconfig.runtimes.effective import Effective, Tier
from dsconfig.schema.paths import STAGE

CONVERTED: tuple[str, ...] = (
    "bf16.enabled",
    "fp16.enabled",
    STAGE.dotted,
    "zero_optimization.mics_shard_size",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "tensor_parallel.autotp_size",
)


def reads(path: str) -> bool:
    """Return whether the YAML depends on a key of a config: it has no optimizer and no batch."""
    return path in CONVERTED or path.endswith(".device")


def yaml_text(effective: Effective, gpus: int, nodes: int, unread: Collection[str] = ()) -> str:
    """Return the YAML, with what cannot be converted as comments, also ``unread`` "auto" values.

    Stage 0 becomes accelerate's DDP. Raises ValueError if the degrees do not divide the GPUs.
    """
    zero, precision = effective.zero, str(effective.numerics.precision)
    mixed = {"fp32": "no"}.get(precision, precision)
    converted: list[str] = [*CONVERTED, *offload_patterns(effective)]
    if zero.stage == 0:
        kind, blocks = ("MULTI_GPU" if gpus > 1 else "NO"), dict[str, Any]()
        converted = ["bf16.enabled", "fp16.enabled", STAGE.dotted]
    else:
        kind, blocks = "FSDP", _blocks(effective, gpus)
    entries = {**launch_file.head(kind, gpus, nodes), "mixed_precision": mixed, **blocks}
    lines = comment_lines(unconverted(effective, converted, unread))
    return writers.yaml(entries) + "".join(f"{line}\n" for line in lines)


def _blocks(effective: Effective, gpus: int) -> dict[str, Any]:
    zero = effective.zero
    gathers = zero.stage == 3 and zero.gather_16bit_weights_on_model_save
    fsdp = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": zero.stage == 3,
        "fsdp_offload_params": {zero.optimizer_tier, zero.parameter_tier} != {Tier.DEVICE},
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "FULL_STATE_DICT" if gathers else "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": zero.stage == 3,
        "fsdp_activation_checkpointing": effective.activation_checkpointing.enabled,
    }
    blocks: dict[str, Any] = {"fsdp_config": fsdp}
    tensor = tensor_degree(effective)
    group = zero.mics_shard_size if zero.mics_shard_size > 0 else gpus // tensor
    if gpus % (tensor * group):
        raise ValueError(f"{gpus} GPUs are not a multiple of {tensor} (tensor) x {group} (shard)")
    sizes = {
        "dp_replicate_size": gpus // tensor // group,
        "dp_shard_size": group,
        "tp_size": tensor,
    }
    if tensor > 1 or sizes["dp_replicate_size"] > 1:
        blocks[parallelism.BLOCK] = {
            parallelism.yaml_name(name): size for name, size in sizes.items()
        }
    return blocks

"""A ds_config from accelerate's YAML for FSDP."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dsconfig.facts import parallelism
from dsconfig.source import plugin_settings
from dsconfig.source.pointer import is_block

FSDP = "FSDP"
STAGE_OF = {"FULL_SHARD": 3, "HYBRID_SHARD": 3, "SHARD_GRAD_OP": 2, "HYBRID_SHARD_ZERO2": 2}
"""By ``fsdp_sharding_strategy`` (FSDP 1); NO_SHARD is stage 0."""
ADVICE = {
    "fsdp_activation_checkpointing": "gradient_checkpointing=True in the script",
    "fsdp_auto_wrap_policy": "not needed: ZeRO shards every parameter",
    "fsdp_transformer_layer_cls_to_wrap": "not needed: ZeRO shards every parameter",
    "fsdp_min_num_params": "stage3_param_persistence_threshold has a related meaning",
    "fsdp_cpu_ram_efficient_loading": "zero3_init_flag of accelerate's deepspeed_config",
    "fsdp_sync_module_states": "not needed: DeepSpeed broadcasts the weights of rank 0",
    "fsdp_use_orig_params": "not needed",
    "fsdp_backward_prefetch": "overlap_comm and stage3_prefetch_bucket_size",
    "fsdp_forward_prefetch": "stage3_prefetch_bucket_size",
}
"""What to do about a setting that no key represents."""
HEAD = ("compute_environment", "distributed_type", "num_machines", "num_processes", "machine_rank")


class Converted(NamedTuple):
    """A ds_config, and by name of each setting that it does not represent what to do."""

    config: dict[str, Any]
    unconverted: dict[str, str]


def is_fsdp(launch: Mapping[str, Any]) -> bool:
    """Return whether accelerate uses FSDP with this YAML."""
    return str(launch.get("distributed_type", "")).upper() == FSDP


def converted(launch: Mapping[str, Any]) -> Converted:
    """Return the ds_config for an accelerate YAML. Raises ValueError for invalid settings."""
    block = launch.get("fsdp_config")
    settings: dict[str, Any] = {
        (name if name.startswith("fsdp_") else f"fsdp_{name}"): value
        for name, value in (block.items() if is_block(block) else ())
    }
    stage = _stage(settings)
    zero: dict[str, Any] = {"stage": stage}
    if _is_on(settings.pop("fsdp_offload_params", False)) and stage:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    kind = str(settings.get("fsdp_state_dict_type", "")).upper()
    if kind == "FULL_STATE_DICT" and stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    if kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"):
        del settings["fsdp_state_dict_type"]
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "zero_optimization": zero,
    }
    left = {name: ADVICE.get(name, "no key of DeepSpeed") for name in settings}
    mixed = plugin_settings.mixed_precision(launch)
    precision = plugin_settings.PRECISIONS.get(str(mixed).lower())
    if precision is not None:
        config[precision] = {"enabled": True}
    if str(mixed).lower() == "fp8":
        left["mixed_precision"] = "fp8 is converted to bf16"
    left |= _degrees(launch, config)
    other = set(launch) - {*HEAD, "mixed_precision", "fsdp_config", parallelism.BLOCK}
    left |= dict.fromkeys(sorted(map(str, other)), "a setting of the launcher")
    return Converted(config, left)


def _stage(settings: dict[str, Any]) -> int:
    """Return the stage; removes the settings that decide it."""
    version = settings.pop("fsdp_version", 1)
    strategy = str(settings.pop("fsdp_sharding_strategy", "FULL_SHARD")).upper()
    reshards = settings.pop("fsdp_reshard_after_forward", None)
    if str(version) == "2":
        return 3 if reshards is None or _is_on(reshards) else 2
    strategy = str(reshards).upper() if isinstance(reshards, str) else strategy
    if strategy == "NO_SHARD":
        return 0
    if strategy not in STAGE_OF:
        raise ValueError(f"fsdp_sharding_strategy is {strategy}; known: {', '.join(STAGE_OF)}")
    if strategy.startswith("HYBRID"):
        settings["fsdp_sharding_strategy"] = strategy
    return STAGE_OF[strategy]


def _degrees(launch: Mapping[str, Any], config: dict[str, Any]) -> dict[str, str]:
    """Add the parallel degrees to the config; return those that it does not represent."""
    sizes = parallelism.sizes_of(launch)
    if sizes is None:
        return {}
    left: dict[str, str] = {}
    if sizes["tp_size"] > 1:
        config["tensor_parallel"] = {"autotp_size": sizes["tp_size"]}
    if sizes["sp_size"] > 1:
        config["sequence_parallel_size"] = sizes["sp_size"]
    if sizes["cp_size"] > 1:
        left["parallelism_config_cp_size"] = "sequence_parallel_size is DeepSpeed's (Ulysses)"
    if sizes["dp_replicate_size"] > 1:
        config["zero_optimization"]["mics_shard_size"] = sizes["dp_shard_size"]
    sizes_named = {parallelism.yaml_name(name) for name in parallelism.SIZES}
    others = set(parallelism.block_of(launch)) - sizes_named
    return left | dict.fromkeys(sorted(others), "no key of DeepSpeed")


def _is_on(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes")

"""From a concrete config to :class:`Effective`: defaults of the version, one type per setting.

The config holds no "auto" any more and has passed validation; what is left to do is to
fill in what is absent and to give each setting its final type.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dsconfig.facts import Facts
from dsconfig.runtimes.effective.reader import Reader
from dsconfig.runtimes.effective.settings import (
    ActivationCheckpointing,
    Batch,
    Checkpointing,
    Effective,
    Gradients,
    LossScale,
    Named,
    Numerics,
    Offload,
    Precision,
    Reporting,
    Tier,
    Zero,
)
from dsconfig.schema.version import NEWEST, Version

MONITORS = ("tensorboard", "wandb", "comet", "csv_monitor")
DTYPE_NAMES = {
    "fp32": Precision.FP32,
    "float32": Precision.FP32,
    "float": Precision.FP32,
    "fp16": Precision.FP16,
    "float16": Precision.FP16,
    "half": Precision.FP16,
    "bf16": Precision.BF16,
    "bfloat16": Precision.BF16,
    "bfp16": Precision.BF16,
}


def effective(
    config: Mapping[str, Any], facts: Facts | None = None, *, version: Version = NEWEST
) -> Effective:
    """What a runtime holds after reading ``config``.

    ``batch`` is None unless the config settles it together with the world size of ``facts``.
    Raises ValueError with the key where a value is still "auto".
    """
    read = Reader(config, version)
    numerics = _numerics(read)
    return Effective(
        batch=_batch(read, facts or Facts()),
        zero=_zero(read),
        numerics=numerics,
        gradients=_gradients(read),
        optimizer=_named(read, "optimizer"),
        scheduler=_named(read, "scheduler"),
        activation_checkpointing=_activation_checkpointing(read),
        checkpointing=_checkpointing(read, (facts.nodes if facts else None) or 1),
        reporting=_reporting(read),
        dataloader_drop_last=read.flag("dataloader_drop_last"),
        zero_allow_untested_optimizer=read.flag("zero_allow_untested_optimizer"),
        zero_force_ds_cpu_optimizer=read.flag("zero_force_ds_cpu_optimizer"),
        config=config,
        explicit=frozenset(leaf_pointers(config)),
    )


def leaf_pointers(value: Any, pointer: str = "") -> Iterator[str]:
    """Pointers of everything set in a config: scalars, lists, and empty blocks."""
    if isinstance(value, Mapping) and value:
        for key, child in value.items():  # pyright: ignore[reportUnknownVariableType]
            escaped = str(key).replace("~", "~0").replace("/", "~1")  # pyright: ignore[reportUnknownArgumentType]
            yield from leaf_pointers(child, f"{pointer}/{escaped}")
    else:
        yield pointer


def _batch(read: Reader, facts: Facts) -> Batch | None:
    data_parallel = facts.data_parallel
    global_batch = read.optional_integer("train_batch_size")
    micro_batch = read.optional_integer("train_micro_batch_size_per_gpu")
    accumulation = read.optional_integer("gradient_accumulation_steps", use_default=False)
    if data_parallel is None or data_parallel < 1:
        return None
    if global_batch is None and micro_batch is None:
        return None
    if micro_batch is None:
        micro_batch = (global_batch or 0) // (data_parallel * (accumulation or 1))
    if accumulation is None:
        per_pass = micro_batch * data_parallel
        accumulation = 1 if global_batch is None or per_pass == 0 else global_batch // per_pass
    product = micro_batch * accumulation * data_parallel
    if product == 0 or (global_batch is not None and global_batch != product):
        return None
    return Batch(
        global_batch=product,
        micro_batch=micro_batch,
        accumulation=accumulation,
        data_parallel=data_parallel,
    )


def _numerics(read: Reader) -> Numerics:
    precision = Precision.FP32
    half = "bf16" if read.has("bf16") or not read.has("bfloat16") else "bfloat16"
    if read.flag(f"{half}.enabled"):
        precision = Precision.BF16
    elif read.flag("fp16.enabled"):
        precision = Precision.FP16
    autocast = None
    if read.flag("torch_autocast.enabled"):
        autocast = str(read.value("torch_autocast.dtype") or "bfloat16")
        autocast = "float16" if DTYPE_NAMES.get(autocast) is Precision.FP16 else "bfloat16"
    return Numerics(
        precision=precision,
        autocast=autocast,
        autocast_safe_modules=read.names("torch_autocast.lower_precision_safe_modules"),
        fp16_auto_cast=precision is Precision.FP16 and read.flag("fp16.auto_cast"),
        loss_scale=_loss_scale(read) if precision is Precision.FP16 else None,
        check_grad_overflow=precision is Precision.FP16
        or (precision is Precision.BF16 and read.flag(f"{half}.check_grad_overflow")),
        immediate_grad_update=read.flag("bf16.immediate_grad_update"),
        grad_accum_dtype=_dtype(read, "data_types.grad_accum_dtype", precision),
        communication_dtype=_dtype(read, "communication_data_type", precision),
        master_weights_16bit=read.flag("bf16.bf16_master_weights_and_grads")
        or read.flag("fp16.fp16_master_weights_and_grads"),
        optimizer_states_16bit=read.flag("bf16.bf16_optimizer_states"),
        keep_in_fp32_modules=_keep_in_fp32(read),
        param_dtype=_optional_dtype(read, "data_types.param_dtype"),
        buffer_dtype=read.value("data_types.buffer_dtype"),
    )


def _keep_in_fp32(read: Reader) -> tuple[str, ...] | str:
    value = read.value("data_types.keep_in_fp32_modules")
    return tuple(value) if isinstance(value, list | tuple) else "auto"  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _dtype(read: Reader, path: str, default: Precision) -> Precision:
    return _optional_dtype(read, path) or default


def _optional_dtype(read: Reader, path: str) -> Precision | None:
    value = read.value(path)
    return None if value is None else DTYPE_NAMES.get(str(value).lower())


def _loss_scale(read: Reader) -> LossScale:
    static = read.number("fp16.loss_scale")
    return LossScale(
        static=static if static > 0 else None,
        initial_power=read.integer("fp16.initial_scale_power"),
        window=read.integer("fp16.loss_scale_window"),
        hysteresis=read.integer("fp16.hysteresis"),
        consecutive_hysteresis=read.flag("fp16.consecutive_hysteresis"),
        minimum=read.number("fp16.min_loss_scale"),
    )


def _gradients(read: Reader) -> Gradients:
    return Gradients(
        clipping=max(read.number("gradient_clipping"), 0.0),
        prescale=read.flag("prescale_gradients"),
        predivide_factor=read.number("gradient_predivide_factor"),
        allreduce_op=str(read.value("gradient_allreduce_op") or "mean").lower(),
        managed_accumulation=read.flag("managed_gradient_accumulation"),
        compute_norm=not read.has("zero_optimization")
        or read.flag("zero_optimization.compute_grad_norm"),
    )


def _zero(read: Reader) -> Zero:
    block = "zero_optimization"
    if not read.has(block):
        return Zero()
    if isinstance(read.value(block), bool):
        return Zero(stage=int(read.value(block)))
    stage = read.integer(f"{block}.stage")
    overlap = read.value(f"{block}.overlap_comm")
    sizes = {name: read.integer(f"{block}.{path}") for name, path in ZERO_INTEGERS.items()}
    flags = {name: read.flag(f"{block}.{path}") for name, path in ZERO_FLAGS.items()}
    if read.flag(f"{block}.stage3_gather_fp16_weights_on_model_save"):  # the old name
        flags["gather_16bit_weights_on_model_save"] = True
    return Zero(
        stage=stage,
        overlap_comm=stage == 3 if overlap is None else bool(overlap),
        offload_optimizer=_offload(read, "optimizer"),
        offload_param=_offload(read, "param"),
        leaf_modules=_leaf_modules(read),
        **sizes,
        **flags,
    )


def _leaf_modules(read: Reader) -> tuple[str, ...]:
    """Only what the user names: the defaults are class paths of other people's models."""
    block = "zero_optimization.leaf_module"
    asked = [name for name in ("classes", "names", "name_suffixes") if read.has(f"{block}.{name}")]
    return tuple(module for name in asked for module in read.names(f"{block}.{name}"))


ZERO_INTEGERS = {
    "reduce_bucket_size": "reduce_bucket_size",
    "allgather_bucket_size": "allgather_bucket_size",
    "sub_group_size": "sub_group_size",
    "prefetch_bucket_size": "stage3_prefetch_bucket_size",
    "param_persistence_threshold": "stage3_param_persistence_threshold",
    "model_persistence_threshold": "stage3_model_persistence_threshold",
    "max_live_parameters": "stage3_max_live_parameters",
    "max_reuse_distance": "stage3_max_reuse_distance",
    "module_granularity_threshold": "stage3_module_granularity_threshold",
    "hpz_partition_size": "zero_hpz_partition_size",
    "mics_shard_size": "mics_shard_size",
}
ZERO_FLAGS = {
    "contiguous_gradients": "contiguous_gradients",
    "reduce_scatter": "reduce_scatter",
    "allgather_partitions": "allgather_partitions",
    "round_robin_gradients": "round_robin_gradients",
    "ignore_unused_parameters": "ignore_unused_parameters",
    "gather_16bit_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
    "quantized_weights": "zero_quantized_weights",
    "quantized_gradients": "zero_quantized_gradients",
    "quantized_nontrainable_weights": "zero_quantized_nontrainable_weights",
}
TIERS = {"cpu": Tier.HOST, "nvme": Tier.NVME}


def _offload(read: Reader, what: str) -> Offload | None:
    block = f"zero_optimization.offload_{what}"
    deprecated = "zero_optimization.cpu_offload" + ("_param" if what == "param" else "")
    if read.flag(deprecated):
        tier = Tier.HOST
    else:
        tier = TIERS.get(str(read.value(f"{block}.device"))) if read.has(block) else None
    if tier is None:
        return None
    optimizer = what == "optimizer"
    return Offload(
        tier=tier,
        nvme_path=read.value(f"{block}.nvme_path"),
        buffer_count=read.integer(f"{block}.buffer_count"),
        pin_memory=read.flag(f"{block}.pin_memory"),
        buffer_size=None if optimizer else read.integer(f"{block}.buffer_size"),
        max_in_cpu=None if optimizer else read.integer(f"{block}.max_in_cpu"),
        pipeline_read=optimizer and read.flag(f"{block}.pipeline_read"),
        pipeline_write=optimizer and read.flag(f"{block}.pipeline_write"),
        fast_init=optimizer and read.flag(f"{block}.fast_init"),
        ratio=read.number(f"{block}.ratio") if optimizer else 1.0,
        super_offload=optimizer and read.flag(f"{block}.super_offload"),
    )


def _named(read: Reader, block: str) -> Named | None:
    kind = read.value(f"{block}.type")
    if not isinstance(kind, str):
        return None
    params = read.value(f"{block}.params")
    return Named(type=kind, params=dict(params) if isinstance(params, Mapping) else {})  # pyright: ignore[reportUnknownArgumentType]


def _activation_checkpointing(read: Reader) -> ActivationCheckpointing:
    block = "activation_checkpointing"
    return ActivationCheckpointing(
        enabled=read.has(block),
        partition_activations=read.flag(f"{block}.partition_activations"),
        cpu_checkpointing=read.flag(f"{block}.cpu_checkpointing"),
        contiguous_memory_optimization=read.flag(f"{block}.contiguous_memory_optimization"),
        number_checkpoints=read.optional_integer(f"{block}.number_checkpoints"),
        synchronize_checkpoint_boundary=read.flag(f"{block}.synchronize_checkpoint_boundary"),
        profile=read.flag(f"{block}.profile"),
    )


def _checkpointing(read: Reader, nodes: int) -> Checkpointing:
    return Checkpointing(
        tag_validation=str(read.value("checkpoint.tag_validation") or "warn").lower(),
        load_universal=read.flag("checkpoint.load_universal"),
        node_local_storage=nodes > 1 and read.flag("checkpoint.use_node_local_storage"),
    )


def _reporting(read: Reader) -> Reporting:
    monitors = {name: read.block(name) for name in MONITORS if read.flag(f"{name}.enabled")}
    return Reporting(
        steps_per_print=read.optional_integer("steps_per_print"),
        wall_clock_breakdown=read.flag("wall_clock_breakdown"),
        memory_breakdown=read.flag("memory_breakdown"),
        dump_state=read.flag("dump_state"),
        flops_profiler=read.block("flops_profiler")
        if read.flag("flops_profiler.enabled")
        else None,
        comms_logger=read.block("comms_logger") if read.flag("comms_logger.enabled") else None,
        monitors=monitors,
    )

"""The blocks DeepSpeed checks with models of its own, field by field and release by release.

Everything not listed here is read with plain ``dict.get``: unknown keys are ignored and
values kept as they are. Dates are the first release with the field.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from dsconfig.runtimes.coercion import Kind
from dsconfig.schema.version import OLDEST, Version


class Bounds(NamedTuple):
    """Limits of a number from release ``since`` on; None is no limit."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False
    since: Version = OLDEST

    def hold(self, number: float) -> bool:
        if self.low is not None and (number <= self.low if self.low_open else number < self.low):
            return False
        if self.high is None:
            return number == number
        return number < self.high if self.high_open else number <= self.high

    def __str__(self) -> str:
        parts: list[str] = []
        if self.low is not None:
            parts.append(f"{'more than' if self.low_open else 'at least'} {self.low:g}")
        if self.high is not None:
            parts.append(f"{'less than' if self.high_open else 'at most'} {self.high:g}")
        return " and ".join(parts)


class Field(NamedTuple):
    """One declared field; ``until`` is the last release that had it."""

    name: str
    kind: Kind
    since: Version = OLDEST
    until: Version | None = None
    nullable: bool = False
    bounds: tuple[Bounds, ...] = ()
    long_name: str | None = None
    """The alias files use; ``name`` works as well from the first pydantic release on."""

    def exists(self, version: Version) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)

    def bounds_at(self, version: Version) -> Bounds | None:
        valid = [bounds for bounds in self.bounds if bounds.since <= version]
        return valid[-1] if valid else None


class Block(NamedTuple):
    """A block with a model. ``strict`` are the spans of releases in which the model is used.

    ``names`` leads from either name of a field to the field.
    """

    path: tuple[str, ...]
    fields: Mapping[str, Field]
    names: Mapping[str, Field]
    strict: tuple[tuple[Version, Version | None], ...]
    nullable: bool = False
    text_auto_is_absent: bool = False
    """The word "auto" in place of the block counts as no block."""
    auto_dropped_since: Version = OLDEST

    def drops_auto(self, version: Version) -> bool:
        """Whether keys with the value "auto" are removed before the block is checked."""
        return self.auto_dropped_since <= version

    def is_strict(self, version: Version) -> bool:
        return any(
            first <= version and (last is None or version <= last) for first, last in self.strict
        )


AT_LEAST_0 = (Bounds(low=0),)
SHARE = (Bounds(low=0, high=1),)


def _v(text: str) -> Version:
    return Version.parse(text)


def _many(kind: Kind, since: str, names: str, **options: Any) -> Iterator[Field]:
    for name in names.split():
        yield Field(name, kind, _v(since), **options)


def _block(path: str, strict: str, *fields: Field, **options: Any) -> Block:
    spans: list[tuple[Version, Version | None]] = []
    for span in strict.split(","):
        first, _, last = span.partition("-")
        spans.append((_v(first), _v(last) if last else None))
    by_name = {entry.name: entry for entry in fields}
    by_long_name = {entry.long_name: entry for entry in fields if entry.long_name}
    names = by_name | by_long_name
    return Block(tuple(path.split(".")), by_name, names, tuple(spans), **options)


_ZERO = _block(
    "zero_optimization",
    "0.7.0",
    Field("stage", Kind.STAGE),
    *_many(
        Kind.BOOL,
        "0.7.0",
        "contiguous_gradients reduce_scatter allgather_partitions load_from_fp32_weights "
        "elastic_checkpoint ignore_unused_parameters legacy_stage1 round_robin_gradients "
        "stage3_gather_fp16_weights_on_model_save",
    ),
    Field(
        "reduce_bucket_size",
        Kind.INT,
        bounds=(Bounds(low=0), Bounds(low=0, low_open=True, since=_v("0.19.6"))),
    ),
    *_many(Kind.INT, "0.7.0", "allgather_bucket_size sub_group_size", bounds=AT_LEAST_0),
    *_many(
        Kind.BOOL,
        "0.7.0",
        "overlap_comm cpu_offload cpu_offload_param cpu_offload_use_pin_memory",
        nullable=True,
    ),
    *(
        Field(name, Kind.INT, _v("0.7.0"), bounds=AT_LEAST_0, long_name=f"stage3_{name}")
        for name in (
            "prefetch_bucket_size",
            "param_persistence_threshold",
            "model_persistence_threshold",
            "max_live_parameters",
            "max_reuse_distance",
        )
    ),
    Field(
        "gather_16bit_weights_on_model_save",
        Kind.BOOL,
        long_name="stage3_gather_16bit_weights_on_model_save",
    ),
    Field(
        "module_granularity_threshold",
        Kind.INT,
        _v("0.16.0"),
        long_name="stage3_module_granularity_threshold",
    ),
    Field(
        "use_all_reduce_for_fetch_params",
        Kind.BOOL,
        _v("0.14.3"),
        long_name="stage3_use_all_reduce_for_fetch_params",
    ),
    Field("allgather_sequential", Kind.BOOL, _v("0.18.5"), long_name="stage3_allgather_sequential"),
    *_many(Kind.BLOCK, "0.7.0", "offload_param offload_optimizer", nullable=True),
    Field("zenflow", Kind.BLOCK, _v("0.17.5"), nullable=True),
    Field("leaf_module", Kind.BLOCK, _v("0.18.0"), nullable=True),
    Field("memory_efficient_linear", Kind.BOOL, _v("0.9.0")),
    Field("mics_shard_size", Kind.INT, _v("0.9.2"), _v("0.19.6")),
    Field("mics_hierarchical_params_gather", Kind.BOOL, _v("0.9.2"), _v("0.19.6")),
    Field("zero_hpz_partition_size", Kind.INT, _v("0.10.0"), bounds=AT_LEAST_0),
    *_many(Kind.BOOL, "0.10.0", "zero_quantized_weights zero_quantized_gradients"),
    *_many(Kind.BOOL, "0.10.1", "override_module_apply pipeline_loading_checkpoint"),
    Field("zero_quantized_nontrainable_weights", Kind.BOOL, _v("0.10.2")),
    Field("use_multi_rank_bucket_allreduce", Kind.BOOL, _v("0.12.4")),
    Field("zeropp_loco_param", Kind.DICT, _v("0.16.2"), _v("0.19.7"), nullable=True),
    Field("log_trace_cache_warnings", Kind.BOOL, _v("0.16.4")),
    Field("enable_sanity_checks", Kind.BOOL, _v("0.17.6")),
    Field("save_muon_momentum_buffer_in_memory", Kind.BOOL, _v("0.18.9")),
    *_many(Kind.BOOL, "0.19.7", "compute_grad_norm parameter_alignment"),
)

_OFFLOAD_PARAM = _block(
    "zero_optimization.offload_param",
    "0.7.0",
    Field("device", Kind.DEVICE),
    Field("nvme_path", Kind.PATH, nullable=True),
    *_many(Kind.INT, "0.7.0", "buffer_count buffer_size max_in_cpu", bounds=AT_LEAST_0),
    Field("pin_memory", Kind.BOOL),
    nullable=True,
    text_auto_is_absent=True,
)

_OFFLOAD_OPTIMIZER = _block(
    "zero_optimization.offload_optimizer",
    "0.7.0",
    Field("device", Kind.DEVICE),
    Field("nvme_path", Kind.PATH, nullable=True),
    Field("buffer_count", Kind.INT, bounds=AT_LEAST_0),
    *_many(Kind.BOOL, "0.7.0", "pin_memory pipeline_read pipeline_write fast_init"),
    Field("ratio", Kind.FLOAT, _v("0.12.3"), bounds=SHARE),
    Field("super_offload", Kind.BOOL, _v("0.18.0")),
    Field("cpuadam_cores_perc", Kind.FLOAT, _v("0.18.0"), bounds=SHARE),
    nullable=True,
    text_auto_is_absent=True,
)

_ZENFLOW = _block(
    "zero_optimization.zenflow",
    "0.17.5",
    Field(
        "topk_ratio",
        Kind.FLOAT,
        bounds=(
            Bounds(0, 1),
            Bounds(0, 1, low_open=True, high_open=True, since=_v("0.19.6")),
        ),
    ),
    Field("select_strategy", Kind.STR),
    *_many(Kind.TEXT_OR_INT, "0.17.5", "select_interval update_interval"),
    *_many(Kind.BOOL, "0.17.5", "overlap_step offload"),
    Field("auto_ratio", Kind.FLOAT, bounds=SHARE),
    Field("full_warm_up_rounds", Kind.INT),
    Field("pt_reserved_cores_perc", Kind.FLOAT, _v("0.17.6"), bounds=SHARE),
    Field("steps_per_epoch", Kind.INT, nullable=True),
    nullable=True,
    text_auto_is_absent=True,
)

_LEAF_MODULE = _block(
    "zero_optimization.leaf_module",
    "0.18.0",
    *_many(Kind.TEXT_OR_STRINGS, "0.18.0", "classes names name_suffixes"),
    nullable=True,
    text_auto_is_absent=True,
)

_FP16 = _block(
    "fp16",
    "0.17.1",
    *_many(
        Kind.BOOL,
        "0.17.1",
        "enabled auto_cast consecutive_hysteresis fp16_master_weights_and_grads",
    ),
    Field("loss_scale", Kind.LOSS_SCALE),
    *_many(Kind.INT, "0.17.1", "initial_scale_power hysteresis"),
    *_many(Kind.SCALE_INTEGER, "0.17.1", "loss_scale_window min_loss_scale"),
)

_BF16_FIELDS = (
    *_many(Kind.BOOL, "0.17.1", "enabled immediate_grad_update check_grad_overflow"),
    *_many(Kind.BOOL, "0.18.3", "bf16_master_weights_and_grads bf16_optimizer_states"),
)

_MONITOR: dict[str, Any] = {
    "text_auto_is_absent": True,
    "auto_dropped_since": _v("0.8.1"),
}
_MONITORS = (
    _block(
        "tensorboard",
        "0.6.6",
        Field("enabled", Kind.BOOL),
        *_many(Kind.STR, "0.6.6", "output_path job_name"),
        **_MONITOR,
    ),
    _block(
        "csv_monitor",
        "0.6.6",
        Field("enabled", Kind.BOOL),
        *_many(Kind.STR, "0.6.6", "output_path job_name"),
        **_MONITOR,
    ),
    _block(
        "wandb",
        "0.6.6",
        Field("enabled", Kind.BOOL),
        *_many(Kind.STR, "0.6.6", "group team", nullable=True),
        Field("project", Kind.STR),
        **_MONITOR,
    ),
    _block(
        "comet",
        "0.14.3",
        Field("enabled", Kind.BOOL),
        Field("samples_log_interval", Kind.INT),
        *_many(
            Kind.STR,
            "0.14.3",
            "project workspace api_key experiment_name experiment_key mode",
            nullable=True,
        ),
        Field("online", Kind.BOOL, nullable=True),
        **_MONITOR,
    ),
)

_COMPILE = _block(
    "compile",
    "0.13.2-0.14.3,0.16.6",
    Field("enabled", Kind.BOOL, until=_v("0.14.3")),
    Field("backend", Kind.STR, until=_v("0.14.3")),
    Field("kwargs", Kind.DICT, until=_v("0.14.3")),
    *_many(
        Kind.BOOL,
        "0.16.6",
        "deepcompile free_activation offload_activation offload_opt_states double_buffer "
        "symmetric_memory debug_log offload_parameters sync_before_reduce sync_after_reduce "
        "sync_before_allgather sync_after_allgather",
    ),
    *_many(Kind.BOOL, "0.17.2", "keep_int_input_tensors keep_all_input_tensors"),
    Field("free_activation_threshold", Kind.INT, _v("0.18.0")),
    Field("passes", Kind.PASSES, _v("0.18.9"), nullable=True),
    Field("offload_activation_pin_memory", Kind.BOOL, _v("0.19.6")),
    Field("autoep_non_moe", Kind.BOOL, _v("0.19.8")),
)

_TENSOR_PARALLEL = _block(
    "tensor_parallel",
    "0.16.4",
    Field("dtype", Kind.DTYPE),
    Field("autotp_size", Kind.INT),
    Field("tp_overlap_comm", Kind.BOOL, _v("0.16.6")),
    Field("vocab_parallel_lm_head", Kind.BOOL, _v("0.19.8"), nullable=True),
    Field("vocab_parallel_ce_backend", Kind.LOSS_BACKEND, _v("0.19.8")),
    Field("tensor_parallel", Kind.BLOCK, long_name="tp"),
    Field("injection_policy_tuple", Kind.LIST, nullable=True),
    Field("partition_config", Kind.DICT, _v("0.18.6"), nullable=True),
    Field("preset_model", Kind.STR, _v("0.18.6"), nullable=True),
    Field("keep_module_on_host", Kind.BOOL),
    Field("replace_with_kernel_inject", Kind.BOOL, long_name="kernel_inject"),
)

_TP_FIELDS = (
    *_many(Kind.INT, "0.16.4", "tp_size tp_grain_size"),
    *_many(Kind.ANY, "0.16.4", "mpu tp_group", nullable=True),
)

BLOCKS: tuple[Block, ...] = (
    _ZERO,
    _OFFLOAD_PARAM,
    _OFFLOAD_OPTIMIZER,
    _ZENFLOW,
    _LEAF_MODULE,
    _FP16,
    _block("bf16", "0.17.1", *_BF16_FIELDS, nullable=True),
    _block("bfloat16", "0.17.1", *_BF16_FIELDS),
    *_MONITORS,
    _block(
        "comms_logger",
        "0.7.0",
        *_many(Kind.BOOL, "0.7.0", "enabled prof_all verbose debug"),
        Field("prof_ops", Kind.LIST),
    ),
    _block("timers.throughput", "0.14.3", *_many(Kind.BOOL, "0.14.3", "enabled synchronized")),
    _block(
        "hybrid_engine",
        "0.9.0",
        *_many(Kind.BOOL, "0.9.0", "enabled release_inference_cache pin_parameters"),
        Field(
            "max_out_tokens",
            Kind.INT,
            bounds=(Bounds(low=0, low_open=True, since=_v("0.19.7")),),
        ),
        *_many(Kind.INT, "0.9.0", "inference_tp_size tp_gather_partition_size"),
        Field("enable_cuda_graph", Kind.BOOL, _v("0.19.6")),
    ),
    _block(
        "weight_quantization",
        "0.10.3",
        Field("enabled", Kind.BOOL),
        *_many(Kind.INT, "0.10.3", "num_bits q_groups"),
        Field("q_type", Kind.QUANTIZATION),
        *_many(Kind.DICT, "0.10.3", "quantized_initialization post_init_quant"),
    ),
    _COMPILE,
    _TENSOR_PARALLEL,
    _block("tensor_parallel.tp", "0.16.4", *_TP_FIELDS, text_auto_is_absent=True),
    _block("tensor_parallel.tensor_parallel", "0.16.4", *_TP_FIELDS, text_auto_is_absent=True),
)

BLOCK_AT: Mapping[tuple[str, ...], Block] = {block.path: block for block in BLOCKS}

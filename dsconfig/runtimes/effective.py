"""A fully resolved config: concrete types, every default filled in.

The input of ``cost`` and ``planner``. Sizes are in elements unless stated otherwise. Field defaults
are those of the newest DeepSpeed; :func:`effective` uses those of the requested release.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from dsconfig import batch
from dsconfig.facts import Facts
from dsconfig.mesh import Mesh
from dsconfig.runtimes.degrees import with_executed_degrees
from dsconfig.runtimes.read_config import MONITORS, overlaps
from dsconfig.runtimes.settings import ConfigReader, plain, setting
from dsconfig.schema.former_names import with_current_names
from dsconfig.schema.paths import OFFLOAD_OPTIMIZER, OFFLOAD_PARAM, STAGE
from dsconfig.schema.value_checks import DTYPE_OF_NAME
from dsconfig.schema.version import NEWEST, Version


class Precision(StrEnum):
    """Dtype of weights and gradients in forward and backward."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def bytes(self) -> int:
        return 4 if self is Precision.FP32 else 2


_PRECISION_OF = {**DTYPE_OF_NAME, "bfp16": "bf16"}
"""``bfp16`` is the name in releases before 0.14.1."""


class Tier(StrEnum):
    """Storage tier of a state: device, host memory or NVMe."""

    DEVICE = "device"
    HOST = "host"
    NVME = "nvme"


TIER_NAMES = {Tier.DEVICE: "none", Tier.HOST: "cpu", Tier.NVME: "nvme"}
"""Name of each tier as a ``device`` in a config."""
_TIER_BELOW = {name: tier for tier, name in TIER_NAMES.items() if tier is not Tier.DEVICE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Batch sizes in samples; ``global_batch = micro_batch * accumulation * data_parallel``."""

    global_batch: int
    micro_batch: int
    accumulation: int
    data_parallel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """DeepSpeed's loss scaling; ``static`` is a fixed scale, None is dynamic."""

    static: float | None = None
    initial_power: int = setting("fp16.initial_scale_power")
    window: int = setting("fp16.loss_scale_window")
    hysteresis: int = setting("fp16.hysteresis")
    consecutive_hysteresis: bool = setting("fp16.consecutive_hysteresis")
    minimum: float = setting("fp16.min_loss_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Dtypes of weights, accumulation and communication, and loss scaling."""

    precision: Precision = Precision.FP32
    autocast: str | None = None
    """Dtype of torch.autocast (``bfloat16`` or ``float16``), or None."""
    fp16_auto_cast: bool = False
    loss_scale: LossScale | None = None
    """Set if and only if ``precision`` is fp16."""
    check_grad_overflow: bool = False
    immediate_grad_update: bool = False
    grad_accum_dtype: Precision = Precision.FP32
    communication_dtype: Precision = Precision.FP32
    master_dtype: Precision = Precision.FP32
    """Of the weights that the optimizer updates."""
    state_dtype: Precision = Precision.FP32
    """Of the optimizer's states."""
    buffer_dtype: str | None = None
    fp32_buffers: tuple[str, ...] | None = None
    """Name patterns of the buffers kept in fp32; None: those that the model's classes name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Averaging, clipping and reduction of gradients."""

    clipping: float = setting("gradient_clipping")
    """Maximum global norm; 0 disables clipping."""
    prescale: bool = setting("prescale_gradients")
    predivide_factor: float = setting("gradient_predivide_factor")
    allreduce_op: str = setting("gradient_allreduce_op")
    managed_accumulation: bool = setting("managed_gradient_accumulation")
    compute_norm: bool = setting("zero_optimization.compute_grad_norm")
    sparse: bool = setting("sparse_gradients")
    """Gradients of embeddings are sparse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Offload of parameters or optimizer states."""

    tier: Tier
    nvme_path: str | None = None
    buffer_count: int = setting(f"{OFFLOAD_OPTIMIZER}.buffer_count")
    pin_memory: bool = setting(f"{OFFLOAD_OPTIMIZER}.pin_memory")
    buffer_size: int = setting(f"{OFFLOAD_PARAM}.buffer_size")
    """For parameters."""
    max_in_cpu: int = setting(f"{OFFLOAD_PARAM}.max_in_cpu")
    """For parameters."""
    pipeline_read: bool = setting(f"{OFFLOAD_OPTIMIZER}.pipeline_read")
    pipeline_write: bool = setting(f"{OFFLOAD_OPTIMIZER}.pipeline_write")
    ratio: float = setting(f"{OFFLOAD_OPTIMIZER}.ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAccess:
    """The aio block: bytes per read or write, requests in flight per thread, threads."""

    block_size: int = setting("aio.block_size")
    queue_depth: int = setting("aio.queue_depth")
    intra_op_parallelism: int = setting("aio.intra_op_parallelism")


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """The zero_optimization block. Bucket and threshold sizes are elements."""

    stage: int = setting(STAGE)
    reduce_bucket_size: int = setting("zero_optimization.reduce_bucket_size")
    allgather_bucket_size: int = setting("zero_optimization.allgather_bucket_size")
    overlap_comm: bool = False
    """Default: on at stage 3, otherwise off."""
    contiguous_gradients: bool = setting("zero_optimization.contiguous_gradients")
    ignore_unused_parameters: bool = setting("zero_optimization.ignore_unused_parameters")
    sub_group_size: int = setting("zero_optimization.sub_group_size")
    prefetch_bucket_size: int = setting("zero_optimization.stage3_prefetch_bucket_size")
    param_persistence_threshold: int = setting(
        "zero_optimization.stage3_param_persistence_threshold"
    )
    model_persistence_threshold: int = setting(
        "zero_optimization.stage3_model_persistence_threshold"
    )
    max_live_parameters: int = setting("zero_optimization.stage3_max_live_parameters")
    max_reuse_distance: int = setting("zero_optimization.stage3_max_reuse_distance")
    gather_16bit_weights_on_model_save: bool = setting(
        "zero_optimization.stage3_gather_16bit_weights_on_model_save"
    )
    hpz_partition_size: int = setting("zero_optimization.zero_hpz_partition_size")
    mics_shard_size: int = setting("zero_optimization.mics_shard_size")
    leaf_module: Mapping[str, Any] | None = setting("zero_optimization.leaf_module", is_block=True)
    enable_sanity_checks: bool = setting("zero_optimization.enable_sanity_checks")
    quantized_weights: bool = setting("zero_optimization.zero_quantized_weights")
    quantized_frozen_weights: bool = setting(
        "zero_optimization.zero_quantized_nontrainable_weights"
    )
    quantized_gradients: bool = setting("zero_optimization.zero_quantized_gradients")
    memory_efficient_linear: bool = setting("zero_optimization.memory_efficient_linear")
    offload_optimizer: Offload | None = None
    offload_param: Offload | None = None

    @property
    def optimizer_tier(self) -> Tier:
        return self.offload_optimizer.tier if self.offload_optimizer else Tier.DEVICE

    @property
    def parameter_tier(self) -> Tier:
        return self.offload_param.tier if self.offload_param else Tier.DEVICE

    @property
    def reduces_every_pass(self) -> bool:
        """Whether dsengine reduces gradients in every backward instead of once per step.

        At stage 1 it does so if the optimizer is offloaded; otherwise gradients would stay on the
        device until the accumulation boundary.
        """
        return self.stage >= 2 or (self.stage == 1 and self.offload_optimizer is not None)


def mesh_of(zero: Zero, facts: Facts) -> Mesh:
    """Return the ranks along each axis: which share the states, and which have copies of them."""
    return Mesh.over(
        facts.world_size or 1,
        facts.degrees,
        sharded=zero.stage > 0,
        group=zero.mics_shard_size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Type and parameters of an optimizer or scheduler."""

    type: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationCheckpointing:
    """Activation checkpointing; ``enabled`` is true if the config has the block."""

    enabled: bool = False
    partition_activations: bool = setting("activation_checkpointing.partition_activations")
    cpu_checkpointing: bool = setting("activation_checkpointing.cpu_checkpointing")
    contiguous_memory_optimization: bool = setting(
        "activation_checkpointing.contiguous_memory_optimization"
    )
    number_checkpoints: int | None = setting("activation_checkpointing.number_checkpoints")
    synchronize_checkpoint_boundary: bool = setting(
        "activation_checkpointing.synchronize_checkpoint_boundary"
    )
    profile: bool = setting("activation_checkpointing.profile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    tag_validation: str = "warn"
    node_local_storage: bool = False
    """Each node keeps its part of a checkpoint on a local disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """Printing and logging. The mappings are blocks with defaults filled in."""

    steps_per_print: int | None = setting("steps_per_print")
    wall_clock_breakdown: bool = setting("wall_clock_breakdown")
    memory_breakdown: bool = setting("memory_breakdown")
    dump_state: bool = setting("dump_state")
    log_level: str | None = setting("log_level")
    throughput: bool = setting("timers.throughput.enabled")
    throughput_synchronized: bool = setting("timers.throughput.synchronized")
    flops_profiler: Mapping[str, Any] | None = None
    comms_logger: Mapping[str, Any] | None = None
    monitors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Enabled monitors by block: tensorboard, wandb, comet, csv_monitor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The config as a runtime holds it in memory.

    ``batch`` is None if the facts do not determine it. ``config`` is the concrete config (without
    ``"auto"``).
    """

    batch: Batch | None
    zero: Zero = field(default_factory=Zero)
    numerics: Numerics = field(default_factory=Numerics)
    gradients: Gradients = field(default_factory=Gradients)
    optimizer: Named | None = None
    scheduler: Named | None = None
    activation_checkpointing: ActivationCheckpointing = field(
        default_factory=ActivationCheckpointing
    )
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    reporting: Reporting = field(default_factory=Reporting)
    file_access: FileAccess = field(default_factory=FileAccess)
    disable_python_gc: bool = setting("disable_python_gc")
    dataloader_drop_last: bool = setting("dataloader_drop_last")
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])


def without_recomputation(settled: Effective) -> Effective:
    """Return the settings for a program that ignores the block activation_checkpointing."""
    block = replace(settled.activation_checkpointing, enabled=False)
    return replace(settled, activation_checkpointing=block)


def effective(
    config: Mapping[str, Any], facts: Facts | None = None, *, version: Version = NEWEST
) -> Effective:
    """Return the settings of a validated config.

    ``batch`` is None unless the config and the world size of ``facts`` determine it. Raises
    ValueError with the key if a value is still "auto".
    """
    written, facts = plain(config), facts or Facts()
    read = ConfigReader(with_current_names(written), version)
    zero = _zero(read)
    several_nodes = (facts.nodes or 1) > 1
    # The ranks that DeepSpeed divides the batch by; autotp_size does not count.
    divided = with_executed_degrees(facts, written)
    return read.build(
        Effective,
        batch=_batch(read, divided),
        zero=zero,
        numerics=_numerics(read, zero, divides_sequence=divided.degrees.sequence > 1),
        gradients=read.build(
            Gradients,
            clipping=max(float(read.value("gradient_clipping") or 0), 0.0),
            allreduce_op=str(read.value("gradient_allreduce_op") or "mean").lower(),
        ),
        optimizer=_named(read, "optimizer"),
        scheduler=_named(read, "scheduler"),
        activation_checkpointing=read.build(
            ActivationCheckpointing, enabled=read.has("activation_checkpointing")
        ),
        checkpointing=Checkpointing(
            tag_validation=str(read.value("checkpoint.tag_validation") or "warn").lower(),
            node_local_storage=several_nodes and read.flag("checkpoint.use_node_local_storage"),
        ),
        reporting=_reporting(read),
        file_access=read.build(FileAccess),
        config=written,
    )


def _batch(read: ConfigReader, facts: Facts) -> Batch | None:
    ranks = facts.data_parallel
    numbers = {key: read.count(key) if read.has(key) else None for key in batch.KEYS}
    given = batch.Triple(*numbers.values())
    if ranks is None or min((ranks, *given.given.values())) < 1:
        return None
    solved = batch.solve(given, ranks, facts.degrees.tensor)
    settled = isinstance(solved, batch.Triple)
    return Batch(**solved._asdict(), data_parallel=ranks) if settled else None


def _numerics(read: ConfigReader, zero: Zero, *, divides_sequence: bool) -> Numerics:
    precision = Precision.FP32
    if read.flag("bf16.enabled"):
        precision = Precision.BF16
    elif read.flag("fp16.enabled"):
        precision = Precision.FP16
    fp16, bf16 = precision is Precision.FP16, precision is Precision.BF16
    narrow_masters = any(
        read.flag(f"{block}.{block}_master_weights_and_grads") for block in ("bf16", "fp16")
    )
    master = precision if narrow_masters else Precision.FP32
    autocast = None
    if read.flag("torch_autocast.enabled"):
        wanted = _dtype(read, "torch_autocast.dtype", Precision.BF16)
        autocast = "float16" if wanted is Precision.FP16 else "bfloat16"
    communicated = "communication_data_type"
    if divides_sequence and read.has(f"seq_parallel_{communicated}"):
        communicated = f"seq_parallel_{communicated}"
    kept = read.value("data_types.keep_in_fp32_modules")
    return Numerics(
        precision=precision,
        autocast=autocast,
        fp16_auto_cast=fp16 and read.flag("fp16.auto_cast"),
        loss_scale=_loss_scale(read) if fp16 else None,
        check_grad_overflow=fp16 or (bf16 and read.flag("bf16.check_grad_overflow")),
        immediate_grad_update=read.flag("bf16.immediate_grad_update"),
        grad_accum_dtype=_dtype(read, "data_types.grad_accum_dtype", precision),
        communication_dtype=_dtype(read, communicated, precision),
        master_dtype=master,
        state_dtype=_state_dtype(read, zero, master),
        buffer_dtype=read.value("data_types.buffer_dtype"),
        fp32_buffers=None if kept in (None, "auto") else tuple(kept),
    )


def _state_dtype(read: ConfigReader, zero: Zero, master: Precision) -> Precision:
    """Return the dtype of the optimizer's states: on the host they are fp32 unless set otherwise.

    Elsewhere an optimizer creates them like the weights it updates.
    """
    if read.flag("bf16.bf16_optimizer_states"):
        return Precision.BF16
    is_on_host = zero.stage > 0 and zero.offload_optimizer is not None
    is_wide = read.value("optimizer.params.fp32_optimizer_states") is not False
    return Precision.FP32 if is_on_host and is_wide else master


def _dtype(read: ConfigReader, path: str, default: Precision) -> Precision:
    name = _PRECISION_OF.get(str(read.value(path)).lower(), "")
    return Precision(name) if name in tuple(Precision) else default


def _loss_scale(read: ConfigReader) -> LossScale:
    static = float(read.value("fp16.loss_scale") or 0)
    return read.build(LossScale, static=static if static > 0 else None)


def _zero(read: ConfigReader) -> Zero:
    block = "zero_optimization"
    stage = int(read.value(f"{block}.stage") or 0)
    return read.build(
        Zero,
        stage=stage,
        overlap_comm=overlaps(read.value(f"{block}.overlap_comm"), stage),
        offload_optimizer=_offload(read, OFFLOAD_OPTIMIZER),
        offload_param=_offload(read, OFFLOAD_PARAM),
    )


def _offload(read: ConfigReader, block: str) -> Offload | None:
    tier = _TIER_BELOW.get(str(read.value(f"{block}.device"))) if read.has(block) else None
    if tier is None:
        return None
    return read.build(Offload, block, tier=tier, nvme_path=read.value(f"{block}.nvme_path"))


def _named(read: ConfigReader, block: str) -> Named | None:
    kind = read.value(f"{block}.type")
    if not isinstance(kind, str):
        return None
    params = read.value(f"{block}.params")
    return Named(type=kind, params=params if isinstance(params, dict) else {})  # pyright: ignore[reportUnknownArgumentType]


def _reporting(read: ConfigReader) -> Reporting:
    def block(name: str) -> dict[str, Any] | None:
        return read.block(name) if read.flag(f"{name}.enabled") else None

    return read.build(
        Reporting,
        flops_profiler=block("flops_profiler"),
        comms_logger=block("comms_logger"),
        monitors={name: found for name in MONITORS if (found := block(name)) is not None},
    )

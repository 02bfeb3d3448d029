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
from dsconfig.runtimes.config_view import MONITORS, ConfigView, overlaps
from dsconfig.runtimes.degrees import with_executed_degrees
from dsconfig.runtimes.settings import plain, setting
from dsconfig.schema import paths
from dsconfig.schema.former_names import with_current_names
from dsconfig.schema.paths import KeyPath
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
    initial_power: int = setting(paths.FP16 / "initial_scale_power")
    window: int = setting(paths.FP16 / "loss_scale_window")
    hysteresis: int = setting(paths.FP16 / "hysteresis")
    consecutive_hysteresis: bool = setting(paths.FP16 / "consecutive_hysteresis")
    minimum: float = setting(paths.FP16 / "min_loss_scale")


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

    clipping: float = setting(paths.GRADIENT_CLIPPING)
    """Maximum global norm; 0 disables clipping."""
    prescale: bool = setting(paths.ROOT / "prescale_gradients")
    predivide_factor: float = setting(paths.ROOT / "gradient_predivide_factor")
    allreduce_op: str = setting(paths.ROOT / "gradient_allreduce_op")
    managed_accumulation: bool = setting(paths.ROOT / "managed_gradient_accumulation")
    compute_norm: bool = setting(paths.ZERO / "compute_grad_norm")
    sparse: bool = setting(paths.ROOT / "sparse_gradients")
    """Gradients of embeddings are sparse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Offload of parameters or optimizer states."""

    tier: Tier
    nvme_path: str | None = None
    buffer_count: int = setting(paths.OFFLOAD_OPTIMIZER / "buffer_count")
    pin_memory: bool = setting(paths.OFFLOAD_OPTIMIZER / "pin_memory")
    buffer_size: int = setting(paths.OFFLOAD_PARAM / "buffer_size")
    """For parameters."""
    max_in_cpu: int = setting(paths.OFFLOAD_PARAM / "max_in_cpu")
    """For parameters."""
    pipeline_read: bool = setting(paths.OFFLOAD_OPTIMIZER / "pipeline_read")
    pipeline_write: bool = setting(paths.OFFLOAD_OPTIMIZER / "pipeline_write")
    ratio: float = setting(paths.OFFLOAD_OPTIMIZER / "ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAccess:
    """The aio block: bytes per read or write, requests in flight per thread, threads."""

    block_size: int = setting(paths.AIO / "block_size")
    queue_depth: int = setting(paths.AIO / "queue_depth")
    intra_op_parallelism: int = setting(paths.AIO / "intra_op_parallelism")


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """The zero_optimization block. Bucket and threshold sizes are elements."""

    stage: int = setting(paths.STAGE)
    reduce_bucket_size: int = setting(paths.REDUCE_BUCKET)
    allgather_bucket_size: int = setting(paths.GATHER_BUCKET)
    overlap_comm: bool = False
    """Default: on at stage 3, otherwise off."""
    contiguous_gradients: bool = setting(paths.ZERO / "contiguous_gradients")
    ignore_unused_parameters: bool = setting(paths.ZERO / "ignore_unused_parameters")
    sub_group_size: int = setting(paths.SUB_GROUP_SIZE)
    prefetch_bucket_size: int = setting(paths.PREFETCH_BUCKET)
    param_persistence_threshold: int = setting(paths.PERSISTENCE_THRESHOLD)
    model_persistence_threshold: int = setting(paths.ZERO / "stage3_model_persistence_threshold")
    max_live_parameters: int = setting(paths.ZERO / "stage3_max_live_parameters")
    max_reuse_distance: int = setting(paths.ZERO / "stage3_max_reuse_distance")
    gather_16bit_weights_on_model_save: bool = setting(paths.GATHERED_ON_SAVE)
    hpz_partition_size: int = setting(paths.ZERO / "zero_hpz_partition_size")
    mics_shard_size: int = setting(paths.ZERO / "mics_shard_size")
    leaf_module: Mapping[str, Any] | None = setting(paths.ZERO / "leaf_module", is_block=True)
    enable_sanity_checks: bool = setting(paths.ZERO / "enable_sanity_checks")
    quantized_weights: bool = setting(paths.ZERO / "zero_quantized_weights")
    quantized_frozen_weights: bool = setting(paths.ZERO / "zero_quantized_nontrainable_weights")
    quantized_gradients: bool = setting(paths.ZERO / "zero_quantized_gradients")
    memory_efficient_linear: bool = setting(paths.ZERO / "memory_efficient_linear")
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
    partition_activations: bool = setting(paths.ACTIVATION_CHECKPOINTING / "partition_activations")
    cpu_checkpointing: bool = setting(paths.ACTIVATION_CHECKPOINTING / "cpu_checkpointing")
    contiguous_memory_optimization: bool = setting(
        paths.ACTIVATION_CHECKPOINTING / "contiguous_memory_optimization"
    )
    number_checkpoints: int | None = setting(paths.ACTIVATION_CHECKPOINTING / "number_checkpoints")
    synchronize_checkpoint_boundary: bool = setting(
        paths.ACTIVATION_CHECKPOINTING / "synchronize_checkpoint_boundary"
    )
    profile: bool = setting(paths.ACTIVATION_CHECKPOINTING / "profile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    tag_validation: str = "warn"
    node_local_storage: bool = False
    """Each node keeps its part of a checkpoint on a local disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """Printing and logging. The mappings are blocks with defaults filled in."""

    steps_per_print: int | None = setting(paths.STEPS_PER_PRINT)
    wall_clock_breakdown: bool = setting(paths.ROOT / "wall_clock_breakdown")
    memory_breakdown: bool = setting(paths.ROOT / "memory_breakdown")
    dump_state: bool = setting(paths.ROOT / "dump_state")
    log_level: str | None = setting(paths.ROOT / "log_level")
    throughput: bool = setting(paths.ROOT / "timers" / "throughput" / "enabled")
    throughput_synchronized: bool = setting(paths.ROOT / "timers" / "throughput" / "synchronized")
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
    disable_python_gc: bool = setting(paths.ROOT / "disable_python_gc")
    dataloader_drop_last: bool = setting(paths.ROOT / "dataloader_drop_last")
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
    read = ConfigView(with_current_names(written), facts, version)
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
            clipping=max(float(read.value(paths.GRADIENT_CLIPPING) or 0), 0.0),
            allreduce_op=str(read.value(paths.ROOT / "gradient_allreduce_op") or "mean").lower(),
        ),
        optimizer=_named(read, paths.OPTIMIZER),
        scheduler=_named(read, paths.SCHEDULER),
        activation_checkpointing=read.build(
            ActivationCheckpointing, enabled=read.is_set(paths.ACTIVATION_CHECKPOINTING)
        ),
        checkpointing=Checkpointing(
            tag_validation=str(read.value(paths.CHECKPOINT / "tag_validation") or "warn").lower(),
            node_local_storage=several_nodes
            and read.flag(paths.CHECKPOINT / "use_node_local_storage"),
        ),
        reporting=_reporting(read),
        file_access=read.build(FileAccess),
        config=written,
    )


def _batch(read: ConfigView, facts: Facts) -> Batch | None:
    ranks = facts.data_parallel
    numbers = {key: read.count(key) if read.is_set(key) else None for key in paths.BATCH}
    given = batch.Triple(*numbers.values())
    if ranks is None or min((ranks, *given.given.values())) < 1:
        return None
    solved = batch.solve(given, ranks, facts.degrees.tensor)
    settled = isinstance(solved, batch.Triple)
    return Batch(**solved._asdict(), data_parallel=ranks) if settled else None


def _numerics(read: ConfigView, zero: Zero, *, divides_sequence: bool) -> Numerics:
    precision = Precision.FP32
    if read.flag(paths.BF16_ENABLED):
        precision = Precision.BF16
    elif read.flag(paths.FP16_ENABLED):
        precision = Precision.FP16
    fp16, bf16 = precision is Precision.FP16, precision is Precision.BF16
    narrow_masters = any(
        read.flag(block / f"{block.name}_master_weights_and_grads")
        for block in (paths.BF16, paths.FP16)
    )
    master = precision if narrow_masters else Precision.FP32
    autocast = None
    if read.flag(paths.AUTOCAST / "enabled"):
        wanted = _dtype(read, paths.AUTOCAST / "dtype", Precision.BF16)
        autocast = "float16" if wanted is Precision.FP16 else "bfloat16"
    communicated = paths.COMMUNICATION_DTYPE
    if divides_sequence and read.is_set(paths.SEQUENCE_COMMUNICATION_DTYPE):
        communicated = paths.SEQUENCE_COMMUNICATION_DTYPE
    kept = read.value(paths.DATA_TYPES / "keep_in_fp32_modules")
    return Numerics(
        precision=precision,
        autocast=autocast,
        fp16_auto_cast=fp16 and read.flag(paths.FP16 / "auto_cast"),
        loss_scale=_loss_scale(read) if fp16 else None,
        check_grad_overflow=fp16 or (bf16 and read.flag(paths.BF16 / "check_grad_overflow")),
        immediate_grad_update=read.flag(paths.BF16 / "immediate_grad_update"),
        grad_accum_dtype=_dtype(read, paths.GRAD_ACCUM_DTYPE, precision),
        communication_dtype=_dtype(read, communicated, precision),
        master_dtype=master,
        state_dtype=_state_dtype(read, zero, master),
        buffer_dtype=read.value(paths.DATA_TYPES / "buffer_dtype"),
        fp32_buffers=None if kept in (None, "auto") else tuple(kept),
    )


def _state_dtype(read: ConfigView, zero: Zero, master: Precision) -> Precision:
    """Return the dtype of the optimizer's states: on the host they are fp32 unless set otherwise.

    Elsewhere an optimizer creates them like the weights it updates.
    """
    if read.flag(paths.BF16 / "bf16_optimizer_states"):
        return Precision.BF16
    is_on_host = zero.stage > 0 and zero.offload_optimizer is not None
    is_wide = read.value(paths.OPTIMIZER_PARAMS / "fp32_optimizer_states") is not False
    return Precision.FP32 if is_on_host and is_wide else master


def _dtype(read: ConfigView, path: KeyPath, default: Precision) -> Precision:
    name = _PRECISION_OF.get(str(read.value(path)).lower(), "")
    return Precision(name) if name in tuple(Precision) else default


def _loss_scale(read: ConfigView) -> LossScale:
    static = float(read.value(paths.FP16 / "loss_scale") or 0)
    return read.build(LossScale, static=static if static > 0 else None)


def _zero(read: ConfigView) -> Zero:
    stage = int(read.value(paths.STAGE) or 0)
    return read.build(
        Zero,
        stage=stage,
        overlap_comm=overlaps(read.value(paths.OVERLAP_COMM), stage),
        offload_optimizer=_offload(read, paths.OFFLOAD_OPTIMIZER),
        offload_param=_offload(read, paths.OFFLOAD_PARAM),
    )


def _offload(read: ConfigView, block: KeyPath) -> Offload | None:
    tier = _TIER_BELOW.get(str(read.value(block / "device"))) if read.is_set(block) else None
    if tier is None:
        return None
    return read.build(Offload, block, tier=tier, nvme_path=read.value(block / "nvme_path"))


def _named(read: ConfigView, block: KeyPath) -> Named | None:
    kind = read.value(block / "type")
    if not isinstance(kind, str):
        return None
    params = read.value(block / "params")
    return Named(type=kind, params=params if isinstance(params, dict) else {})  # pyright: ignore[reportUnknownArgumentType]


def _reporting(read: ConfigView) -> Reporting:
    def block(name: str) -> dict[str, Any] | None:
        return read.filled(name) if read.flag(paths.ROOT / name / "enabled") else None

    return read.build(
        Reporting,
        flops_profiler=block("flops_profiler"),
        comms_logger=block("comms_logger"),
        monitors={name: found for name in MONITORS if (found := block(name)) is not None},
    )

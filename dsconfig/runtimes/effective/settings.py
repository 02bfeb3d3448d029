"""A config with nothing left open: concrete types, every default filled in.

``memory`` and ``plan`` take only this. Sizes are in elements unless a name says otherwise.
The defaults written here are those of DeepSpeed 0.19.8 (a test holds them against the schema);
``effective()`` fills in those of the version it is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class Precision(StrEnum):
    """The dtype of weights and gradients in forward and backward."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def bytes(self) -> int:
        return 4 if self is Precision.FP32 else 2


class Tier(StrEnum):
    """Where a state lives: on the device, in host memory, on NVMe."""

    DEVICE = "device"
    HOST = "host"
    NVME = "nvme"


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples. ``global_batch = micro_batch * accumulation * data_parallel``."""

    global_batch: int
    micro_batch: int
    accumulation: int
    data_parallel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """DeepSpeed's loss-scale state machine; ``static`` is a fixed scale, None is dynamic."""

    static: float | None = None
    initial_power: int = 16
    window: int = 1000
    hysteresis: int = 2
    consecutive_hysteresis: bool = False
    minimum: float = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Dtypes of weights, accumulation, communication, and what guards them."""

    precision: Precision = Precision.FP32
    autocast: str | None = None
    """dtype of torch.autocast (``bfloat16`` or ``float16``), None when it is off."""
    autocast_safe_modules: tuple[str, ...] = ()
    fp16_auto_cast: bool = False
    loss_scale: LossScale | None = None
    """Set exactly when ``precision`` is fp16."""
    check_grad_overflow: bool = False
    immediate_grad_update: bool = False
    grad_accum_dtype: Precision = Precision.FP32
    communication_dtype: Precision = Precision.FP32
    master_weights_16bit: bool = False
    optimizer_states_16bit: bool = False
    keep_in_fp32_modules: tuple[str, ...] | str = "auto"
    param_dtype: Precision | None = None
    buffer_dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """How gradients are averaged, clipped and reduced."""

    clipping: float = 1.0
    """Global norm; 0 switches it off."""
    prescale: bool = False
    predivide_factor: float = 1.0
    allreduce_op: str = "mean"
    managed_accumulation: bool = True
    compute_norm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """One tier below the device for parameters or for optimizer states."""

    tier: Tier
    nvme_path: str | None = None
    buffer_count: int = 4
    buffer_size: int | None = None
    max_in_cpu: int | None = None
    pin_memory: bool = True
    pipeline_read: bool = False
    pipeline_write: bool = False
    fast_init: bool = False
    ratio: float = 1.0
    super_offload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """The zero_optimization block. Bucket and threshold sizes are elements."""

    stage: int = 0
    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int = 500_000_000
    overlap_comm: bool = False
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    allgather_partitions: bool = True
    round_robin_gradients: bool = False
    ignore_unused_parameters: bool = True
    sub_group_size: int = 1_000_000_000
    prefetch_bucket_size: int = 50_000_000
    param_persistence_threshold: int = 100_000
    model_persistence_threshold: int = 9_223_372_036_854_775_807
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    gather_16bit_weights_on_model_save: bool = False
    module_granularity_threshold: int = 0
    hpz_partition_size: int = 1
    mics_shard_size: int = -1
    quantized_weights: bool = False
    quantized_gradients: bool = False
    quantized_nontrainable_weights: bool = False
    offload_optimizer: Offload | None = None
    offload_param: Offload | None = None
    leaf_modules: tuple[str, ...] = ()

    @property
    def optimizer_tier(self) -> Tier:
        return self.offload_optimizer.tier if self.offload_optimizer else Tier.DEVICE

    @property
    def parameter_tier(self) -> Tier:
        return self.offload_param.tier if self.offload_param else Tier.DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A type with its parameters: an optimizer or a scheduler."""

    type: str
    params: Mapping[str, Any] = field(default_factory=_empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationCheckpointing:
    """``enabled`` is true when the file has the block."""

    enabled: bool = False
    partition_activations: bool = False
    cpu_checkpointing: bool = False
    contiguous_memory_optimization: bool = False
    number_checkpoints: int | None = None
    synchronize_checkpoint_boundary: bool = False
    profile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    tag_validation: str = "warn"
    load_universal: bool = False
    node_local_storage: bool = False
    """Each of several nodes keeps its part of a checkpoint on a disk of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """What is printed and logged. The mappings are the blocks with defaults filled in."""

    steps_per_print: int | None = None
    wall_clock_breakdown: bool = False
    memory_breakdown: bool = False
    dump_state: bool = False
    flops_profiler: Mapping[str, Any] | None = None
    comms_logger: Mapping[str, Any] | None = None
    monitors: Mapping[str, Mapping[str, Any]] = field(default_factory=_empty)
    """Enabled monitors by block name: tensorboard, wandb, comet, csv_monitor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The whole config as a runtime would hold it.

    ``batch`` is None when the facts do not settle it. ``config`` is the concrete config it
    came from (no ``"auto"``); ``explicit`` are the pointers of the leaves set in it.
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
    dataloader_drop_last: bool = False
    zero_allow_untested_optimizer: bool = False
    zero_force_ds_cpu_optimizer: bool = True
    config: Mapping[str, Any] = field(default_factory=_empty)
    explicit: frozenset[str] = frozenset()

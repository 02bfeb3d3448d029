"""Rules for known bugs of DeepSpeed releases at ZeRO stage 3: ZeRO++, SuperOffload, fetching.

As in ``known_faults``, each bug is reported in the thread that its message names, and its range was
read in the sources. All were seen on CPU with the last affected release, except DSC857, a bug of a
CUDA kernel.
"""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.fault import Evidence, FaultFinding, fault, lost_steps
from dsconfig.report import Effect
from dsconfig.schema.paths import OFFLOAD_OPTIMIZER, ZERO

HPZ = "zero_hpz_partition_size"
QUANTIZED = "zero_quantized_weights"
ALL_REDUCE = "stage3_use_all_reduce_for_fetch_params"


def _has_secondary_shards(config: Context) -> bool:
    return config.stage == 3 and config.in_force(ZERO, HPZ) > 1


@fault(
    "DSC854",
    "0.14.3 to 0.19.3",
    "deepspeedai/DeepSpeed#8158",
    f'use DeepSpeed 0.19.4 or later, or delete "{ALL_REDUCE}"',
    effect=Effect.NOTE,
)
def padding_added_to_weights(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.14.3 to 0.19.3 may add uninitialized padding to weights fetched by all-reduce

    With `stage3_use_all_reduce_for_fetch_params`, a weight starts inside the padding of the one
    before it if that weight's size is not divisible by the number of ranks. The sum over ranks then
    adds the padding, which is never initialized, to its first elements.

    with: version="0.19.3"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3,
        "stage3_use_all_reduce_for_fetch_params": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    """
    name = ALL_REDUCE.removeprefix("stage3_")
    several = config.facts.world_size != 1
    if config.stage == 3 and several and config.in_force(ZERO, name):
        written = ALL_REDUCE if config.has(*ZERO, ALL_REDUCE) else name
        behavior = "may add padding to weights if a size is not divisible by the number of ranks"
        yield FaultFinding(ZERO / written, behavior)


@fault(
    "DSC855",
    "0.13.2 to 0.18.2",
    "deepspeedai/DeepSpeed#7606",
    f'use DeepSpeed 0.18.3 or later, or "{HPZ}": 1',
    effect=Effect.NOTE,
)
def secondary_shards_stale(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.13.2 to 0.18.2 use old secondary shards after loading weights

    Weights that are loaded into a model built in `zero.Init`, or from a checkpoint, do not reach
    the secondary shards of ZeRO++. The first step computes with the old ones; the step replaces
    them.

    with: version="0.18.2", gpus=8
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    """
    if _has_secondary_shards(config):
        behavior = "compute the first step after loading weights with old secondary shards"
        yield FaultFinding(ZERO / HPZ, behavior)


@fault(
    "DSC877",
    "0.10.0 to 0.13.1",
    "deepspeedai/DeepSpeed#4851",
    f'use DeepSpeed 0.13.2 or later, or "{HPZ}": 1',
    evidence=Evidence.ENDS,
)
def secondary_shards_of_the_start(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.10.0 to 0.13.1 compute backward passes with the weights of the first step

    The secondary shards of ZeRO++ are written once, by the first forward pass, and each backward
    pass gathers them. Training does not converge.

    with: version="0.13.1", gpus=8
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    """
    if _has_secondary_shards(config):
        yield FaultFinding(ZERO / HPZ, "compute backward passes with the weights of the first step")


@fault(
    "DSC856",
    "0.13.5 to 0.19.4",
    "deepspeedai/DeepSpeed#6659",
    f'use DeepSpeed 0.19.5 or later, or "{HPZ}": 1',
    effect=Effect.NOTE,
)
def secondary_shard_outside_weight(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.13.5 to 0.19.4 stop with ZeRO++ at weights with far fewer elements than ranks

    The secondary shard of a rank begins behind the end of such a weight, and partitioning raises an
    `IndexError`. If only part of a shard is covered, the rest is not initialized.

    with: version="0.19.4", gpus=8
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    """
    if _has_secondary_shards(config):
        behavior = "raise an IndexError for weights with far fewer elements than ranks"
        yield FaultFinding(ZERO / HPZ, behavior)


@fault(
    "DSC857",
    "0.10.2 to 0.19.5",
    "deepspeedai/DeepSpeed#7775",
    f'use DeepSpeed 0.19.6 or later, or fp16, or delete "{QUANTIZED}"',
)
def bf16_quantized_as_fp16(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.10.2 to 0.19.5 quantize bf16 weights as if they were fp16

    The kernel reads the bits of each weight as fp16 and returns fp16, so gathered weights have
    other values, and layers that also receive bf16 stop with a dtype mismatch. Read in the source:
    DeepSpeed has this kernel for CUDA only.

    with: version="0.19.5"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3,
        "zero_quantized_weights": true}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true}, "zero_optimization": {"stage": 3,
        "zero_quantized_weights": true}}
    """
    if config.stage == 3 and config.bf16 and config.in_force(ZERO, QUANTIZED):
        behavior = "read bf16 weights as fp16 when they quantize them"
        yield FaultFinding(ZERO / QUANTIZED, behavior)


@fault(
    "DSC858",
    "0.18.0 to 0.18.8",
    "deepspeedai/DeepSpeed#7905",
    "use DeepSpeed 0.18.9 or later, or accumulate gradients without super_offload",
)
def super_offload_drops_micro_steps(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.18.0 to 0.18.8 keep only the last micro step's gradient with SuperOffload

    Gradients are copied to the host at the boundary only, and those of earlier micro steps are
    discarded. All parameter groups use the learning rate and weight decay of the first.

    with: version="0.18.8"
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
        "super_offload": true}}}
    good: {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
        "super_offload": true}}}
    """
    on_host = config.offload("offload_optimizer") == "cpu"
    if config.stage == 3 and on_host and config.is_on(OFFLOAD_OPTIMIZER, "super_offload"):
        behavior = "drop the gradients of all micro steps except the last with super_offload"
        yield from lost_steps(config, OFFLOAD_OPTIMIZER / "super_offload", behavior, 1)

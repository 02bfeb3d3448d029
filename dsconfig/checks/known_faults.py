"""Rules for known bugs of DeepSpeed releases that change what a config trains.

Each bug is reported in the thread that its message names. Its range of releases was read in
DeepSpeed's sources; ``tests/checks/record_known_faults.py`` searches a clone and prints the ranges
again. A bug that the config alone triggers is ``altered``; one that also depends on the script, the
GPU or a race is a note.
"""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.fault import RANGES as RANGES
from dsconfig.checks.fault import FaultFinding, fault, lost_steps
from dsconfig.report import Effect
from dsconfig.schema import paths


def _offloads(config: Context) -> bool:
    return config.offload("offload_optimizer") != "none"


def _clips(config: Context) -> bool:
    return (config.number("gradient_clipping") or 0) > 0


@fault("DSC830", "0.17.6 to 0.18.2", "deepspeedai/DeepSpeed#7718", "use DeepSpeed 0.18.3 or later")
def accumulation_lost_at_stage_2(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.17.6 to 0.18.2 keep only the last micro step's gradient at stage 2

    The accumulation buffers are recreated at each micro step, because the flag that marks them as
    present is set only at the boundary. Gradient norms are too small, and gradient accumulation
    trains worse. Offloaded optimizers are not affected.

    with: version="0.18.0"
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2}}
    good: {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2}}
    """
    if config.stage == 2 and not _offloads(config):
        behavior = "drop the gradients of all micro steps except the last at stage 2"
        yield from lost_steps(config, paths.STAGE, behavior, 1)


@fault(
    "DSC831",
    "0.5.9 to 0.15.1",
    "deepspeedai/DeepSpeed#6550",
    "use DeepSpeed 0.19.0 or later, or accumulate gradients without offload",
)
def offloaded_accumulation_wrong(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed up to 0.15.1 accumulates gradients incorrectly with optimizer offload at stage 2

    The micro step counter starts at 0 in the first step and at -1 in later ones, and accumulated
    gradients are copied at steps that are not a boundary.

    with: version="0.14.4"
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    good: {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    """
    if config.stage == 2 and _offloads(config):
        behavior = "accumulate gradients incorrectly if the optimizer is offloaded"
        yield from lost_steps(config, paths.OFFLOAD_OPTIMIZER, behavior, 1)


@fault(
    "DSC832",
    "0.15.2 to 0.18.9",
    "deepspeedai/DeepSpeed#7967",
    "use DeepSpeed 0.19.0 or later, or use at most two gradient accumulation steps",
)
def offloaded_micro_steps_dropped(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.15.2 to 0.18.9 drop gradients between the first and last micro step

    With an optimizer offloaded at stage 2, accumulated gradients are copied to host memory only at
    the first micro step, so later ones are lost except the last. Gradient norms are too small.

    with: version="0.16.4"
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    good: {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    """
    if config.stage == 2 and _offloads(config):
        behavior = "drop the gradients of all micro steps between the first and the last"
        yield from lost_steps(config, paths.OFFLOAD_OPTIMIZER, behavior, 2)


@fault(
    "DSC833",
    "0.8.1 to 0.14.2",
    "deepspeedai/DeepSpeed#5606, deepspeedai/DeepSpeed#5545",
    'use DeepSpeed 0.14.3 or later, or "overlap_comm": false',
    effect=Effect.NOTE,
)
def overlap_overwrites_bucket(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed up to 0.14.2 with `overlap_comm` may overwrite a bucket during its reduction

    At stages 1 and 2 the compute stream does not wait for the reduction stream, so gradients are
    wrong if communication is slower than backward.

    with: version="0.14.2"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": false}}
    """
    if config.stage in (1, 2) and config.overlap_comm:
        behavior = "may overwrite gradients that are still being reduced, especially on slow links"
        yield FaultFinding(paths.OVERLAP_COMM, behavior)


@fault(
    "DSC834",
    "0.12.4 to 0.18.9",
    "deepspeedai/DeepSpeed#7965",
    'use DeepSpeed 0.19.0 or later, or "overlap_comm": false',
    effect=Effect.NOTE,
)
def overlap_recycles_buffer(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.12.4 to 0.18.9 with `overlap_comm` may reuse a reduction buffer too early

    At stages 1 and 2 the buffers are not recorded on the reduction stream. The symptom is a loss
    that becomes NaN at stage 2 only.

    with: version="0.18.0"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": true}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": false}}
    """
    if config.stage in (1, 2) and config.overlap_comm:
        behavior = "may reuse the memory of a reduction in progress: the loss can become NaN"
        yield FaultFinding(paths.OVERLAP_COMM, behavior)


@fault(
    "DSC835",
    "0.9.0 to 0.18.7",
    "deepspeedai/DeepSpeed#7898",
    "use DeepSpeed 0.18.8 or later, or torch before 2.10",
    effect=Effect.NOTE,
)
def stage_3_waits_for_wrong_stream(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed up to 0.18.7 waits for the wrong stream at stage 3

    Gradients are copied after a wait for the default stream. From torch 2.10, backward runs on
    another stream, and weights randomly become NaN.

    with: version="0.18.7"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
    """
    if config.stage == 3:
        behavior = "randomly produce NaN weights at stage 3 with torch 2.10 or later"
        yield FaultFinding(paths.STAGE, behavior)


@fault(
    "DSC836",
    "0.18.3 to 0.18.9",
    "deepspeedai/DeepSpeed#7985",
    'use DeepSpeed 0.19.0 or later, or "immediate_grad_update": true in bf16',
    triggers="data_types",
)
def last_micro_step_not_reduced(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.18.3 to 0.18.9 do not reduce the last micro step in bf16 at stage 1

    With fp32 accumulation, the gradient of the micro step at the boundary is added after the
    reduction, so each rank keeps its own.

    with: version="0.18.5"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1},
        "data_types": {"grad_accum_dtype": "fp32"}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2},
        "data_types": {"grad_accum_dtype": "fp32"}}
    """
    sums = config.get("data_types", "grad_accum_dtype")
    early = config.is_on(paths.ROOT / config.bf16_block, "immediate_grad_update")
    if config.stage == 1 and config.bf16 and sums in ("fp32", "float32") and not early:
        behavior = "do not reduce the gradient of the last micro step, so ranks diverge"
        yield FaultFinding(paths.GRAD_ACCUM_DTYPE, behavior)


@fault(
    "DSC837",
    "0.17.6 to 0.18.5",
    "deepspeedai/DeepSpeed#7839",
    "use DeepSpeed 0.18.6 or later, or stage 1",
    triggers="bf16 bfloat16",
)
def bf16_divided_at_stage_0(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.17.6 to 0.18.5 divide bf16 gradients at stage 0 by an unapplied loss scale

    It also never clears them, so they accumulate.

    with: version="0.18.5"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}
    """
    if config.stage == 0 and config.stage_is_known and config.bf16:
        behavior = "divide gradients by 65536 and never clear them in bf16 at stage 0"
        yield FaultFinding(paths.ROOT / config.bf16_block, behavior)


@fault(
    "DSC838",
    "0.6.2 to 0.13.2",
    "deepspeedai/DeepSpeed#5170",
    "use DeepSpeed 0.13.3 or later, or stage 1",
    triggers="bf16 bfloat16",
)
def bf16_not_reduced_at_stage_0(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed up to 0.13.2 does not reduce the gradients it steps with in bf16 at stage 0

    The optimizer accumulates gradients right after backward, and the reduction uses the bf16
    copies, so ranks diverge.

    with: version="0.12.6"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1}}
    """
    alone = config.facts.world_size == 1
    if config.stage == 0 and config.stage_is_known and config.bf16 and not alone:
        behavior = "do not reduce the gradients that the step uses in bf16 at stage 0"
        yield FaultFinding(paths.ROOT / config.bf16_block, behavior)


@fault(
    "DSC839",
    "0.13.2 to 0.13.2",
    "deepspeedai/DeepSpeed#5150",
    "use DeepSpeed 0.13.3 or later",
    triggers="gradient_clipping",
)
def clipping_inverted(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.13.2 inverts gradient clipping in fp32 at stage 0

    It scales small gradients up and leaves large ones unchanged: the factor is the larger of 1 and
    threshold / norm instead of the smaller.

    with: version="0.13.2"
    bad: {"train_batch_size": 8, "gradient_clipping": 1.0}
    good: {"train_batch_size": 8, "gradient_clipping": 1.0, "zero_optimization": {"stage": 1}}
    """
    in_fp32 = not (config.bf16 or config.fp16)
    if config.stage == 0 and config.stage_is_known and in_fp32 and _clips(config):
        behavior = "scale small gradients up to the threshold and clip none at stage 0"
        yield FaultFinding(paths.GRADIENT_CLIPPING, behavior)


@fault(
    "DSC840",
    "0.13.2 to 0.16.5",
    "deepspeedai/DeepSpeed#7171",
    "use DeepSpeed 0.16.6 or later",
    effect=Effect.NOTE,
    triggers="gradient_clipping",
)
def overflow_makes_norm_nan(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.13.2 to 0.16.5 turn an infinite gradient norm into NaN at stages 1 and 2

    The replacement of the infinite norm computes zero times infinity, and clipping then multiplies
    all gradients by NaN.

    with: version="0.16.4"
    bad: {"train_batch_size": 8, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "gradient_clipping": 0, "zero_optimization": {"stage": 2}}
    """
    if config.stage in (1, 2) and _clips(config):
        behavior = "multiply gradients by NaN if a norm is infinite at stages 1 and 2"
        yield FaultFinding(paths.GRADIENT_CLIPPING, behavior)


@fault(
    "DSC841",
    "0.9.0 to 0.10.3",
    "deepspeedai/DeepSpeed#4321",
    'use DeepSpeed 0.11.0 or later, or "reduce_scatter": true',
    effect=Effect.NOTE,
)
def full_bucket_not_reduced(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed up to 0.10.3 skips a tensor as large as the bucket at stage 3

    This affects runs without `reduce_scatter`. The Trainer's bucket size, hidden_size squared,
    equals the size of many weights.

    with: version="0.10.0"
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_scatter": false}}
    good: {"train_batch_size": 8, "zero_optimization": {"stage": 3, "reduce_scatter": true}}
    """
    contiguous = config.in_force(paths.ZERO, "contiguous_gradients")
    if config.stage == 3 and contiguous and not config.in_force(paths.ZERO, "reduce_scatter"):
        behavior = "do not reduce the gradient of a weight whose size equals reduce_bucket_size"
        yield FaultFinding(paths.ZERO / "reduce_scatter", behavior)


@fault(
    "DSC842",
    "0.3.0 to 0.19.3",
    "deepspeedai/DeepSpeed#8179",
    "use DeepSpeed 0.19.4 or later, or delete it",
    triggers="scheduler",
)
def stair_counts_ignored(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed up to 0.19.3 ignores the stair counts of OneCycle

    The learning rate follows a ramp without stairs.

    with: version="0.19.3"
    bad: {"train_batch_size": 8, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1,
        "cycle_max_lr": 0.2, "cycle_first_stair_count": 10}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1,
        "cycle_max_lr": 0.2}}}
    """
    for name in ("cycle_first_stair_count", "cycle_second_stair_count"):
        path = paths.SCHEDULER_PARAMS / name
        if config.scheduler == "OneCycle" and (config.number(*path) or 0) > 0:
            yield FaultFinding(path, f"ignore {name}: the learning rate follows a ramp")


@fault(
    "DSC843",
    "0.17.2 to 0.19.3",
    "deepspeedai/DeepSpeed#8171",
    'use DeepSpeed 0.19.4 or later, or write "warmup_max_lr" as a list, one rate per group',
    effect=Effect.NOTE,
    triggers="scheduler",
)
def parameter_groups_share_warmup(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.17.2 to 0.19.3 warm up all parameter groups to the first group's rate

    Without `warmup_max_lr`, WarmupLR uses the learning rate of the optimizer's first group for all
    groups.

    with: version="0.18.9"
    bad: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params":
        {"warmup_num_steps": 10}}}
    good: {"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params":
        {"warmup_num_steps": 10, "warmup_max_lr": 0.001}}}
    """
    if (
        config.scheduler == "WarmupLR"
        and config.get("scheduler", "params", "warmup_max_lr") is None
    ):
        behavior = "use the learning rate of the first parameter group for all"
        yield FaultFinding(paths.SCHEDULER_PARAMS, behavior)


@fault(
    "DSC844",
    "0.18.3 to 0.19.5",
    "deepspeedai/DeepSpeed#8224",
    "use DeepSpeed 0.19.6 or later (deepspeedai/DeepSpeed#8245), or stage 1 or 3",
    effect=Effect.NOTE,
)
def reused_module_gradient_lost(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.18.3 to 0.19.5 may lose part of a gradient at stage 2 in bf16

    If a module is used twice in a step (a shared encoder, a second loss), a parameter becomes ready
    twice in one backward, and the reduction omits one of the two on several ranks. 0.19.6 counts
    the backward passes of a graph.

    with: version="0.19.3"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}
    """
    if config.stage == 2 and config.bf16 and not _offloads(config):
        behavior = "may lose part of the gradient of a module that is used twice in a step"
        yield FaultFinding(paths.STAGE, behavior)


@fault(
    "DSC845",
    "0.18.3 to 0.19.8",
    "deepspeedai/DeepSpeed#8393",
    "use stage 1, which scales the loss, or bf16",
    effect=Effect.NOTE,
    triggers="fp16",
)
def fp16_unscaled_at_stage_0(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.18.3 to 0.19.8 do not scale the loss in fp16 at stage 0

    They divide gradients by the loss scale, but only ZeRO optimizers scale the loss. SGD barely
    updates, clipping never applies, and Adam's moments are close to its eps. Measured with 0.19.8:
    weights are unchanged at a scale of 2^20. A `note`, because Adam with a small eps hides it.

    with: version="0.19.8"
    bad: {"train_batch_size": 8, "fp16": {"enabled": true}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true}, "zero_optimization": {"stage": 1}}
    """
    if config.is_unscaled:
        behavior = "divide gradients by the loss scale at stage 0 without scaling the loss"
        yield FaultFinding(paths.FP16, behavior)

"""Rules for known bugs of DeepSpeed releases outside ZeRO stage 3: steps, reduction, batch sizes.

As in ``known_faults``, each bug is reported in the thread that its message names, and its range was
read in the sources. All were seen on CPU with the last affected release.
"""

import math
from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.fault import Evidence, FaultFinding, fault, lost_steps
from dsconfig.checks.optimizer import built_optimizer
from dsconfig.report import Effect
from dsconfig.schema.paths import COMMUNICATION_DTYPE, FP16, ROOT, ZERO


@fault(
    "DSC860",
    "0.17.1 to 0.18.1",
    "deepspeedai/DeepSpeed#7645",
    "use DeepSpeed 0.18.2 or later, or stage 1",
    triggers="fp16",
)
def fused_fp16_never_steps(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.17.1 to 0.18.1 never update weights with FusedAdam in fp16 at stage 0

    The optimizer's step returns after the overflow check, whether or not there was an overflow.
    The loss is computed with the initial weights forever.

    with: version="0.18.1"
    bad: {"train_batch_size": 8, "fp16": {"enabled": true}, "optimizer": {"type": "AdamW",
        "params": {"lr": 0.001}}}
    good: {"train_batch_size": 8, "fp16": {"enabled": true}, "optimizer": {"type": "AdamW",
        "params": {"lr": 0.001}}, "zero_optimization": {"stage": 1}}
    """
    legacy = config.get("optimizer", "legacy_fusion") is True
    if config.stage != 0 or not config.stage_is_known or not config.fp16 or legacy:
        return
    built = built_optimizer(config)
    if built is not None and built.kind.name == "FusedAdam":
        yield FaultFinding(FP16, "return from every step before the weights are updated")


@fault(
    "DSC861",
    "0.17.2 to 0.18.1",
    "deepspeedai/DeepSpeed#7653",
    "use DeepSpeed 0.18.2 or later, or delete it",
    effect=Effect.NOTE,
    triggers="communication_data_type",
)
def large_weight_in_other_dtype(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.17.2 to 0.18.1 fail on a weight above the bucket size in another dtype

    At stages 1 and 2, a gradient larger than `reduce_bucket_size` is recorded under the weight's
    dtype but looked up under `communication_data_type`. The first reduction raises a
    `RuntimeError`.

    with: version="0.18.1"
    bad: {"train_batch_size": 8, "bf16": {"enabled": true}, "communication_data_type": "fp32",
        "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "bf16": {"enabled": true}, "communication_data_type": "bf16",
        "zero_optimization": {"stage": 2}}
    """
    weights = "bf16" if config.bf16 else "fp16" if config.fp16 else "fp32"
    reduced = config.get("communication_data_type")
    names = {"bf16": ("bf16", "bfloat16"), "fp16": ("fp16", "half"), "fp32": ("fp32", "float")}
    other = any(reduced in names[each] for each in names if each != weights)
    contiguous = config.in_force(ZERO, "contiguous_gradients")
    if config.stage in (1, 2) and other and contiguous:
        behavior = "raise a RuntimeError if a weight is larger than reduce_bucket_size"
        yield FaultFinding(COMMUNICATION_DTYPE, behavior)


@fault(
    "DSC862",
    "0.5.8 to 0.19.5",
    "deepspeedai/DeepSpeed#8237",
    "use micro_batch_sizes whose least common multiple is within max_train_batch_size",
    effect=Effect.NOTE,
    triggers="elasticity",
)
def elastic_batch_above_limit(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed up to 0.19.5 may choose an elastic batch above `max_train_batch_size`

    The least common multiple of `micro_batch_sizes` is a candidate even if it exceeds the limit,
    and usually wins, because it suits the most GPU counts. The learning rate and the number of
    steps then belong to another batch.

    with: version="0.19.5"
    bad: {"train_batch_size": 8, "elasticity": {"enabled": true, "max_train_batch_size": 100,
        "micro_batch_sizes": [8, 10, 12], "ignore_non_elastic_batch_info": true}}
    good: {"train_batch_size": 8, "elasticity": {"enabled": true, "max_train_batch_size": 100,
        "micro_batch_sizes": [2, 4, 8], "ignore_non_elastic_batch_info": true}}
    """
    limit = config.number("elasticity", "max_train_batch_size")
    if limit is None or not config.switch("elasticity", "enabled"):
        return
    written = config.items("elasticity", "micro_batch_sizes")
    sizes = [size for size in written if type(size) is int and size > 0]
    common = math.lcm(*sizes) if sizes and len(sizes) == len(written) else 0
    if max(sizes, default=0) <= limit < common:
        behavior = f"may use batch size {common}, the least common multiple of micro_batch_sizes"
        yield FaultFinding(ROOT / "elasticity" / "max_train_batch_size", behavior)


@fault(
    "DSC863",
    "0.18.3 to 0.19.2",
    "deepspeedai/DeepSpeed#8152",
    "use DeepSpeed 0.19.3 or later",
    effect=Effect.NOTE,
    triggers="pipeline",
    evidence=Evidence.ENDS,
)
def pipeline_divides_gradients_again(config: Context) -> Iterator[FaultFinding]:
    """DeepSpeed 0.18.3 to 0.19.2 divide gradients by the micro steps at every pipeline stage

    The last stage divides them, and each stage before it divides what it receives again. The first
    of several stages trains with far too small gradients, and clipping rarely applies. Only scripts
    that use PipelineModule are affected.

    with: version="0.19.2"
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8, "pipeline":
        {"activation_checkpoint_interval": 1}}
    good: {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "pipeline":
        {"activation_checkpoint_interval": 1}}
    """
    behavior = "divide gradients by the micro steps once per pipeline stage"
    yield from lost_steps(config, ROOT / "pipeline", behavior, 1)

"""Tensor, sequence, expert and pipeline parallelism."""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import refusal, rule
from dsconfig.checks.rule import AT_INIT, Finding, Path, reaches_deepspeed
from dsconfig.report import Effect
from dsconfig.source.pointer import is_block

TP: Path = ("tensor_parallel",)
EP: Path = ("expert_parallel",)


@refusal("DSC461", also=(Effect.ALTERED,), triggers="sequence_parallel_size data_parallel_size")
def sequence_parallel_size(config: Context) -> Iterator[Finding]:
    """The number of ranks is divided by sequence_parallel_size, as a fraction where it does not
    divide: 2 on one rank makes half a rank, and the batch shrinks without a word.

    bad: {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": -2}
    good: {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 2}
    """
    degree = config.get("sequence_parallel_size")
    world = config.facts.world_size
    for key in ("sequence_parallel_size", "data_parallel_size"):
        value = config.get(key)
        if (
            config.has(key)
            and value != "auto"
            and not (isinstance(value, (int, float)) and value >= 1)
        ):
            yield Finding(
                path=(key,),
                message=f"{key} is {value}: the number of ranks it leaves is not positive, and "
                "DeepSpeed stops",
                help=f'write "{key}": 1 or more',
                late=key == "data_parallel_size",
            )
            return
    if world is None or not isinstance(degree, int) or degree < 1:
        return
    data = config.number("data_parallel_size")
    if data is not None and data * degree > world:
        yield Finding(
            path=("sequence_parallel_size",),
            message=f"data_parallel_size {data:g} x sequence_parallel_size {degree} is more than "
            f"the {world} ranks there are: {AT_INIT}",
            help="lower one of them",
            late=True,
        )
    elif world % degree:
        yield Finding(
            path=("sequence_parallel_size",),
            message=f"sequence_parallel_size {degree} does not divide {world} ranks: DeepSpeed "
            f"counts with {world / degree:g} data-parallel ranks",
            help="write a divisor of the number of ranks",
            effect=Effect.ALTERED,
        )


@refusal("DSC462", also=(Effect.INERT,), triggers="tensor_parallel", late=True)
def autotp_size(config: Context) -> Iterator[Finding]:
    """autotp_size must divide the number of ranks (`--world-size`) and agree with tp.tp_size.

    with: world_size=8
    bad: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 4}}
    """
    size = config.in_force(TP, "autotp_size")
    world = config.facts.world_size
    path: Path = (*TP, "autotp_size")
    if size < 0:
        yield Finding(
            path=path,
            message=f"autotp_size is {size}: it counts as off",
            help="delete it, or write the number of ranks one layer is split over",
            effect=Effect.INERT,
            late=False,
        )
    elif size > 1 and world is not None and world % size:
        yield Finding(
            path=path,
            message=f"autotp_size {size} does not divide {world} ranks: {AT_INIT}",
            help="write a divisor of the number of ranks",
        )
    inner = config.block(*TP, "tp") or config.block(*TP, "tensor_parallel")
    name = "tp" if config.has(*TP, "tp") else "tensor_parallel"
    tp_size = inner.get("tp_size")
    if isinstance(tp_size, int) and size > 1 and tp_size not in (1, size):
        yield Finding(
            path=(*TP, name, "tp_size"),
            message=f"tp.tp_size {tp_size} contradicts autotp_size {size}: {AT_INIT}",
            help="delete tp.tp_size",
        )


@refusal("DSC476", triggers="tensor_parallel", late=True)
def autotp_at_stage_3(config: Context) -> Iterator[Finding]:
    """Releases from 0.16.4 to 0.19.3 do not split layers over ranks at stage 3.

    with: version="0.19.3"
    bad: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2},
        "zero_optimization": {"stage": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2},
        "zero_optimization": {"stage": 2}}
    """
    size = config.in_force(TP, "autotp_size")
    in_range = config.since("0.16.4") and not config.since("0.19.4")
    if in_range and size > 1 and config.stage == 3:
        yield Finding(
            path=(*TP, "autotp_size"),
            message=f"autotp_size {size} at stage 3: {AT_INIT}, since only stages up to 2 are "
            "taken from 0.16.4 to 0.19.3",
            help="use stage 2, or DeepSpeed 0.19.4 or later",
        )


@refusal("DSC464", triggers="tensor_parallel", late=True)
def partition_config(config: Context) -> Iterator[Finding]:
    """A layer_spec of partition_config has an unknown type, a bad shape, or a dimension outside
    it.

    bad: {"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2, "partition_config":
        {"layer_specs": [{"patterns": ["o_proj"], "partition_type": "rows"}]}}}
    good: {"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2, "partition_config":
        {"layer_specs": [{"patterns": ["o_proj"], "partition_type": "row"}]}}}
    """
    path: Path = (*TP, "partition_config", "layer_specs")
    for index, spec in enumerate(config.items(*path)):
        if not is_block(spec):
            continue
        here: Path = (*path, str(index))
        kind = spec.get("partition_type", "column")
        if not isinstance(kind, str) or kind.lower() not in ("row", "column", "skip"):
            yield Finding(
                path=(*here, "partition_type"),
                message=f"partition_type {kind!r} is none of row, column and skip: {AT_INIT}",
                help='write "row", "column" or "skip"',
            )
            continue
        shape, default = spec.get("shape"), 1 if kind.lower() == "row" else 0
        axis = spec.get("partition_dim", default)
        if isinstance(shape, list) and isinstance(axis, int) and not 0 <= axis < len(shape):  # pyright: ignore[reportUnknownArgumentType]
            yield Finding(
                path=(*here, "partition_dim") if "partition_dim" in spec else (*here, "shape"),
                message=f"partition_dim {axis} is outside the shape: {AT_INIT}",
                help="write an axis of the shape",
            )


@rule("DSC466", Effect.NOTE, triggers="pipeline")
def pipeline_with_zero(config: Context) -> Iterator[Finding]:
    """A pipeline model (`PipelineModule`) goes with ZeRO stages 0 and 1; with 2 and 3 it stops.

    The block itself says little: `stages`, `partition` and `seed_layers` are not read.

    bad: {"train_batch_size": 8, "pipeline": {"stages": 4}, "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "pipeline": {"stages": 4}, "zero_optimization": {"stage": 1}}
    """
    if config.stage >= 2 and config.block("pipeline"):
        yield Finding(
            path=("pipeline",),
            message=f"a PipelineModule at ZeRO stage {config.stage} stops when the engine is "
            "built; without one the pipeline block does nothing",
            help='set "stage": 1, or delete the block',
            on_key=True,
        )


@rule("DSC467", Effect.INERT, triggers="pipeline", applies_to=reaches_deepspeed)
def pipeline_key_unread(config: Context) -> Iterator[Finding]:
    """DeepSpeed keeps these keys and never reads them; PipelineModule takes them as arguments.

    bad: {"train_batch_size": 8, "pipeline": {"partition": "uniform"}}
    good: {"train_batch_size": 8, "pipeline": {"activation_checkpoint_interval": 1}}
    """
    for name in ("stages", "partition", "seed_layers"):
        if config.has("pipeline", name) and config.get("pipeline", name) != "auto":
            yield Finding(
                path=("pipeline", name),
                message=f"pipeline.{name} is not read: PipelineModule takes it as an argument",
                help="delete it and pass it in the script",
                on_key=True,
            )

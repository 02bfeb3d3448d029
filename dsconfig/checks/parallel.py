"""Rules for tensor, sequence and pipeline parallelism."""

from collections.abc import Iterator
from functools import partial

from dsconfig.checks.context import Context
from dsconfig.checks.registry import DIVIDED, refusal, rule
from dsconfig.checks.rule import AT_INIT, AppliesTo, Finding, Phase, reaches_deepspeed
from dsconfig.cost import divisions
from dsconfig.facts import parallelism
from dsconfig.facts.hf_attributes import is_listed
from dsconfig.mesh import nearest_degree
from dsconfig.report import Effect
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.capabilities import refused_plan, refused_sequence, requires_equal_parts
from dsconfig.runtimes.degrees import with_degrees
from dsconfig.schema.paths import DEGREES, ROOT, SEQUENCE_PARALLEL, TENSOR_PARALLEL, KeyPath
from dsconfig.source.pointer import is_block


@refusal("DSC461", also=(Effect.ALTERED,), triggers="sequence_parallel_size data_parallel_size")
def sequence_parallel_size(config: Context) -> Iterator[Finding]:
    """Invalid sequence or data parallel size

    DeepSpeed divides the number of ranks by `sequence_parallel_size` without checking that it
    divides evenly: 2 on one rank gives half a rank, and silently shrinks the batch.

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
                path=ROOT / key,
                message=f"{key} is {value}, but must be at least 1: DeepSpeed rejects the config",
                help=f'set "{key}" to 1 or more',
                phase=Phase.ENGINE if key == "data_parallel_size" else None,
            )
            return
    if world is None or not isinstance(degree, int) or degree < 1:
        return
    data = config.number("data_parallel_size")
    if data is not None and data * degree > world:
        yield Finding(
            path=SEQUENCE_PARALLEL,
            message=f"data_parallel_size {data:g} x sequence_parallel_size {degree} exceeds "
            f"{world} "
            f"ranks: {AT_INIT}",
            help="lower one of them",
            phase=Phase.ENGINE,
            exception="AssertionError",
        )
    elif world % degree:
        yield Finding(
            path=SEQUENCE_PARALLEL,
            message=f"sequence_parallel_size {degree} does not divide {world} ranks: DeepSpeed "
            f"computes with {world / degree:g} data-parallel ranks",
            help="set it to a divisor of the number of ranks",
            effect=Effect.ALTERED,
        )


@refusal(
    "DSC462",
    also=(Effect.INERT,),
    triggers="tensor_parallel",
    stops="engine AssertionError",
    from_source="needs 8 ranks",
)
def autotp_size(config: Context) -> Iterator[Finding]:
    """Invalid `autotp_size`

    It must divide the number of ranks (`--world-size`) and equal `tp.tp_size`.

    with: gpus=8
    bad: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 4}}
    """
    size = config.in_force(TENSOR_PARALLEL, "autotp_size")
    world = config.facts.world_size
    path = TENSOR_PARALLEL / "autotp_size"
    if size < 0:
        yield Finding(
            path=path,
            message=f"autotp_size is {size}: tensor parallelism is disabled",
            help="delete it, or write the number of ranks that share a layer",
            effect=Effect.INERT,
        )
    elif size > 1 and world is not None and world % size:
        yield Finding(
            path=path,
            message=f"autotp_size {size} does not divide {world} ranks: {AT_INIT}",
            help=f"set it to {nearest_degree(size, world)}, a divisor of the number of ranks",
        )
    inner = config.block(*TENSOR_PARALLEL, "tp") or config.block(
        *TENSOR_PARALLEL, "tensor_parallel"
    )
    name = "tp" if config.has(*TENSOR_PARALLEL, "tp") else "tensor_parallel"
    tp_size = inner.get("tp_size")
    if isinstance(tp_size, int) and size > 1 and tp_size not in (1, size):
        yield Finding(
            path=TENSOR_PARALLEL / name / "tp_size",
            message=f"tp.tp_size {tp_size} contradicts autotp_size {size}: {AT_INIT}",
            help="delete tp.tp_size",
        )


@refusal(
    "DSC476",
    triggers="tensor_parallel",
    stops="engine AssertionError",
    from_source="needs 2 ranks and a release before 0.19.4",
)
def autotp_at_stage_3(config: Context) -> Iterator[Finding]:
    """AutoTP at ZeRO stage 3 requires DeepSpeed 0.19.4

    Releases 0.16.4 to 0.19.3 support stages up to 2.

    with: version="0.19.3"
    bad: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2},
        "zero_optimization": {"stage": 3}}
    good: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2},
        "zero_optimization": {"stage": 2}}
    """
    size = config.in_force(TENSOR_PARALLEL, "autotp_size")
    in_range = config.since("0.16.4") and not config.since("0.19.4")
    if in_range and size > 1 and config.stage == 3:
        yield Finding(
            path=TENSOR_PARALLEL / "autotp_size",
            message=f"autotp_size {size} at stage 3: {AT_INIT}; 0.16.4 to 0.19.3 support stages up "
            "to 2",
            help="use stage 2, or DeepSpeed 0.19.4 or later",
        )


@refusal(
    "DSC464",
    triggers="tensor_parallel",
    stops="engine ValueError",
    from_source="needs 2 ranks",
)
def partition_config(config: Context) -> Iterator[Finding]:
    """Invalid layer spec in `partition_config`

    It has an unknown type, or a dimension outside its shape.

    bad: {"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2, "partition_config":
        {"layer_specs": [{"patterns": ["o_proj"], "partition_type": "rows"}]}}}
    good: {"train_micro_batch_size_per_gpu": 8, "tensor_parallel": {"autotp_size": 2,
        "partition_config": {"layer_specs": [{"patterns": ["o_proj"], "partition_type": "row"}]}}}
    """
    path = TENSOR_PARALLEL / "partition_config" / "layer_specs"
    for index, spec in enumerate(config.items(*path)):
        if not is_block(spec):
            continue
        here: KeyPath = path / str(index)
        kind = spec.get("partition_type", "column")
        if not isinstance(kind, str) or kind.lower() not in ("row", "column", "skip"):
            yield Finding(
                path=here / "partition_type",
                message=f"partition_type must be row, column or skip, not {kind!r}: {AT_INIT}",
                help='write "row", "column" or "skip"',
            )
            continue
        shape, default = spec.get("shape"), 1 if kind.lower() == "row" else 0
        axis = spec.get("partition_dim", default)
        if isinstance(shape, list) and isinstance(axis, int) and not 0 <= axis < len(shape):  # pyright: ignore[reportUnknownArgumentType]
            yield Finding(
                path=here / "partition_dim" if "partition_dim" in spec else here / "shape",
                message=f"partition_dim {axis} is outside the shape: {AT_INIT}",
                help="write a dimension of the shape",
            )


@rule("DSC466", Effect.NOTE, triggers="pipeline")
def pipeline_with_zero(config: Context) -> Iterator[Finding]:
    """Pipeline parallelism requires ZeRO stage 0 or 1

    Engine initialization of a `PipelineModule` fails at stages 2 and 3. Without a `PipelineModule`,
    the block has no effect.

    bad: {"train_batch_size": 8, "pipeline": {"stages": 4}, "zero_optimization": {"stage": 2}}
    good: {"train_batch_size": 8, "pipeline": {"stages": 4}, "zero_optimization": {"stage": 1}}
    """
    if config.stage >= 2 and config.block("pipeline"):
        yield Finding(
            path=ROOT / "pipeline",
            message="with a PipelineModule, DeepSpeed fails at engine initialization at ZeRO "
            "stage "
            f"{config.stage}; without one, the pipeline block has no effect",
            help='set "stage": 1, or delete the block',
            on_key=True,
        )


@rule("DSC467", Effect.INERT, triggers="pipeline", applies_to=reaches_deepspeed)
def pipeline_key_unread(config: Context) -> Iterator[Finding]:
    """Pipeline key that DeepSpeed does not read

    `PipelineModule` takes these values as arguments.

    bad: {"train_batch_size": 8, "pipeline": {"partition": "uniform"}}
    good: {"train_batch_size": 8, "pipeline": {"activation_checkpoint_interval": 1}}
    """
    for name in ("stages", "partition", "seed_layers"):
        if config.has("pipeline", name) and config.get("pipeline", name) != "auto":
            yield Finding(
                path=ROOT / "pipeline" / name,
                message=f"pipeline.{name} is ignored: PipelineModule takes it as an argument",
                help="delete it and pass it to PipelineModule",
                on_key=True,
            )


@rule(
    "DSC478",
    Effect.REFUSED,
    also=(Effect.NOTE,),
    triggers=f"sequence_parallel_size tensor_parallel expert_parallel {DIVIDED}",
    stops="engine ValueError",
)
def indivisible_degree(config: Context) -> Iterator[Finding]:
    """A parallel degree does not divide the model or the sequence

    Ulysses divides the tokens of each sample, and in attention the heads; a number of key/value
    heads below the degree must divide it. AutoEP divides the experts of a layer. The message names
    the nearest degree that the model, the sequence, the batch and the number of ranks allow. AutoTP
    divides heads unevenly (measured with 3 heads on 2 ranks), dsengine refuses to.

    with: model="llama-3-8b", seq_len=4096, gpus=24
    bad: {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 3}
    good: {"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 4}
    """
    for found in divisions.indivisible(with_degrees(config.facts, config.config)):
        if found.axis == "tensor":
            consequence = "AutoTP gives the ranks different numbers, estimated as equal ones"
            yield _at(config, found, consequence, reaches_deepspeed)._replace(effect=Effect.NOTE)
        at = "the first batch" if found.of_length else "initialization"
        finding = _at(config, found, f"{at} fails", partial(_refuses, axis=found.axis))
        yield finding._replace(phase=Phase.STEP) if found.of_length else finding


def _refuses(runtime: Runtime, axis: str) -> bool:
    return requires_equal_parts(runtime, axis)


@rule(
    "DSC479",
    Effect.REFUSED,
    triggers=f"sequence_parallel_size tensor_parallel {DIVIDED}",
    applies_to=lambda runtime: not runtime.runs_deepspeed,
    stops="engine ValueError",
)
def undivided_family(config: Context) -> Iterator[Finding]:
    """A parallel degree that dsengine does not execute for this family of models

    It splits layers by the tensor-parallel plan of transformers, or by the rules of the config, and
    divides the sequences of the families that were found equal to one process.

    with: runtime="dsengine", gpus=4, model_config={"model_type": "gpt2", "n_embd": 768, "n_layer":
        12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    bad: {"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 2}}
    good: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    """
    facts, engine = with_degrees(config.facts, config.config), config.runtimes[0]
    shape = facts.architecture
    if shape is None or not is_listed(shape.family) or engine.runs_deepspeed:
        return
    replaced = (config.has(*TENSOR_PARALLEL, name) for name in ("partition_config", "preset_model"))
    if facts.degrees.tensor > 1 and not any(replaced):
        refused = refused_plan(engine, shape.family).partition(": it would")[0]
        if refused:
            degree = facts.degrees.tensor
            yield _set_at(
                config, "tensor", degree, f"is {degree}: {refused}: {_FAILS}", _WITHOUT_PLAN
            )
    refused = refused_sequence(engine, shape.family)
    if facts.degrees.sequence > 1 and refused:
        degree = facts.degrees.sequence
        help = "train without sequence parallelism, at stage 3"
        yield _set_at(config, "sequence", degree, f"is {degree}: {refused}: {_FAILS}", help)


_FAILS = "initialization fails"
_WITHOUT_PLAN = (
    "write the rules tensor_parallel.partition_config.layer_specs for its layers, or train without "
    "tensor parallelism, at stage 3"
)


def _at(
    config: Context, found: divisions.Indivisible, consequence: str, applies_to: AppliesTo
) -> Finding:
    """Return a finding about a degree that does not divide."""
    problem = f"is {found.degree} (nearest possible: {found.use}): {found.problem}: {consequence}"
    finding = _set_at(config, found.axis, found.degree, problem, f"use {found.use}")
    return finding._replace(applies_to=applies_to)


def _set_at(config: Context, axis: str, degree: int, problem: str, help: str) -> Finding:
    """Return a finding at the key, the argument or the flag that sets a degree."""
    size = parallelism.SIZE_OF.get(axis, "")
    key, training = DEGREES[axis], config.facts.training
    written = ROOT / parallelism.BLOCK / parallelism.yaml_name(size)
    if config.get(*key) == degree:
        path, name = key, str(key)
    elif written.name in parallelism.block_of(config.document.container or {}):
        path, name = written, str(written)
    elif training is not None and size in parallelism.block_of(training.arguments):
        argument = f"{parallelism.BLOCK}.{size}"
        return config.argument_finding(argument, f" {problem}", help)
    else:
        path: KeyPath = ROOT
        name = config.facts.origins.get(f"{axis}_parallel", f"{parallelism.BLOCK} {size}")
    return Finding(path, f"{name} {problem}", help)

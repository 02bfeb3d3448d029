"""Memory of one pipeline stage: its weights, and micro batches in flight.

The schedule is 1F1B: stage s of p runs p - s forward passes ahead of the first backward, and keeps
that many afterwards (``dsconfig.pipelines``, which dsengine executes; DeepSpeed's
TrainSchedule.num_pipe_buffers). So the first stage keeps most activations, the last has the logits.
"""

from collections.abc import Sequence
from dataclasses import replace

from dsconfig import pipelines
from dsconfig.cost.activations import Activations
from dsconfig.cost.weights import OUTSIDE, Weight, Weights, packing_of, weights_of
from dsconfig.cost.workload import Workload, workload
from dsconfig.facts.facts import Facts
from dsconfig.facts.naming import named
from dsconfig.facts.stages import tree_of_stage
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.effective import Effective


def workloads(effective: Effective, facts: Facts, program: Runtime) -> tuple[Workload, ...]:
    """Return the workload of the first and the last stage of a pipeline: those between need less.
    One without a pipeline, and those of all stages if the model is divided already.

    Raises ValueError as :func:`~dsconfig.cost.workload.workload` does.
    """
    in_engine = not program.runs_deepspeed
    job = workload(effective, facts, program.version, in_engine=in_engine)
    stages = facts.degrees.pipeline
    if stages == 1:
        return (job,)
    if len(job.model.stages) == stages:
        return tuple(
            _of_built_stage(job, stage, stages, effective, facts) for stage in range(stages)
        )
    return tuple(_of_stage(job, stage, stages) for stage in (0, stages - 1))


def _of_built_stage(
    job: Workload, stage: int, stages: int, effective: Effective, facts: Facts
) -> Workload:
    """Return the workload of a stage whose layers are known; activations if blocks repeat."""
    tree = tree_of_stage(job.model, stage)
    weights = weights_of(tree, facts.degrees, packing_of(effective, facts))
    blocks = _blocks_of(job.weights)
    own = _blocks_of(weights) if job.activations.blocks else 0
    activations = activations_of_stage(
        job.activations, blocks, stage, stages, job.accumulation, own=own
    )
    return replace(job, weights=weights, built=weights, activations=activations, model=tree)


def _of_stage(job: Workload, stage: int, stages: int) -> Workload:
    shape = job.model.architecture
    tied = shape is not None and shape.tied_embeddings
    weights = Weights(weights_of_stage(job.weights, stage, stages, tied=tied))
    blocks = _blocks_of(job.weights)
    activations = job.activations
    if activations.blocks:
        activations = activations_of_stage(activations, blocks, stage, stages, job.accumulation)
    # The tree is that of the full model: its units are not those of a stage.
    model = replace(job.model, root=None)
    return replace(job, weights=weights, built=weights, activations=activations, model=model)


def _blocks_of(weights: Sequence[Weight]) -> int:
    return len({weight.block for weight in weights if weight.block != OUTSIDE})


def blocks_of_stage(blocks: int, stage: int, stages: int) -> range:
    """Return the blocks of a stage, the remainder on the first stages (DeepSpeed's
    ``partition_uniform``).

    Raises ValueError if a stage would have none.
    """
    if blocks < stages:
        raise ValueError(
            f"{named('pipeline_parallel', stages)}: the model has {blocks} blocks, so some "
            f"stages would be empty; use at most {blocks}"
        )
    each, more = divmod(blocks, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))


def weights_of_stage(
    weights: Sequence[Weight], stage: int, stages: int, *, tied: bool
) -> tuple[Weight, ...]:
    """Return the blocks of a stage; on the first also what precedes them, on the last what follows.

    Tied weights have a copy on the last stage too (DeepSpeed's ``TiedLayerSpec``).
    """
    order = list(dict.fromkeys(w.block for w in weights if w.block != OUTSIDE))
    own = {order[index] for index in blocks_of_stage(len(order), stage, stages)}
    inside = [index for index, weight in enumerate(weights) if weight.block != OUTSIDE]
    before, after = list(weights[: inside[0]]), list(weights[inside[-1] + 1 :])
    if tied and before:
        after.append(max(before, key=lambda weight: weight.elements))
    found = before if stage == 0 else []
    found = found + [weight for weight in weights if weight.block in own]
    return tuple(found + (after if stage == stages - 1 else []))


def activations_of_stage(
    activations: Activations,
    blocks: int,
    stage: int,
    stages: int,
    accumulation: int,
    own: int | None = None,
) -> Activations:
    """Return the activations of one micro batch on this stage, and how many are in flight there.

    ``own``: the blocks of this stage, if known.
    """
    in_flight = pipelines.in_flight(stage, stages, accumulation)
    last = stage == stages - 1
    own = len(blocks_of_stage(blocks, stage, stages)) if own is None else own
    return replace(
        activations,
        blocks=own,
        in_flight=in_flight,
        logits_forward=activations.logits_forward if last else 0,
        logits_backward=activations.logits_backward if last else 0,
        on_host=activations.on_host * own * in_flight // max(1, blocks),
    )

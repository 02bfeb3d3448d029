"""What one stage of a pipeline holds: its part of the weights, and micro batches in flight.

The schedule is 1F1B: stage s of p runs p - s forward passes ahead of the first backward, and keeps
that many afterwards (Narayanan et al. 2021, arXiv:2104.04473, section 2.2; DeepSpeed's
TrainSchedule.num_pipe_buffers). So the first stage keeps most activations, the last has the logits.
"""

from collections.abc import Sequence
from dataclasses import replace

from dsconfig.cost.activations import Activations
from dsconfig.cost.workload import OUTSIDE, Weight, Weights, Workload, workload
from dsconfig.facts.facts import Facts
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.effective import Effective


def workloads(effective: Effective, facts: Facts, program: Runtime) -> tuple[Workload, ...]:
    """That of the first stage of a pipeline and of the last: all between hold less than one of
    them. One where there is no pipeline.

    Raises ValueError as :func:`~dsconfig.cost.workload.workload` does.
    """
    in_engine = not program.runs_deepspeed
    whole = workload(effective, facts, program.version, in_engine=in_engine)
    stages = facts.pipeline_parallel
    if stages == 1:
        return (whole,)
    return tuple(_of_stage(whole, stage, stages) for stage in (0, stages - 1))


def _of_stage(whole: Workload, stage: int, stages: int) -> Workload:
    shape = whole.model.architecture
    tied = shape is not None and shape.tied_embeddings
    weights = Weights(weights_of_stage(whole.weights, stage, stages, tied=tied))
    blocks = len({each.block for each in whole.weights if each.block != OUTSIDE})
    activations = whole.activations
    if activations.blocks:
        activations = activations_of_stage(activations, blocks, stage, stages, whole.accumulation)
    # The tree is that of the whole model: its units are not those of a stage.
    model = replace(whole.model, root=None)
    return replace(whole, weights=weights, activations=activations, model=model)


def blocks_of_stage(blocks: int, stage: int, stages: int) -> range:
    """Whole blocks, the ones left over on the first stages (DeepSpeed's ``partition_uniform``).

    Raises ValueError where a stage would have none.
    """
    if blocks < stages:
        raise ValueError(
            f"--pipeline-parallel {stages}: the model has {blocks} blocks, so some stages would "
            f"have none; give {blocks} at most"
        )
    each, more = divmod(blocks, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))


def weights_of_stage(
    weights: Sequence[Weight], stage: int, stages: int, *, tied: bool
) -> tuple[Weight, ...]:
    """Its blocks; on the first stage what stands before them, on the last what stands behind.

    Tied weights have a copy on the last stage too (DeepSpeed's ``TiedLayerSpec``).
    """
    order = list(dict.fromkeys(each.block for each in weights if each.block != OUTSIDE))
    own = {order[place] for place in blocks_of_stage(len(order), stage, stages)}
    places = [place for place, each in enumerate(weights) if each.block != OUTSIDE]
    before, behind = list(weights[: places[0]]), list(weights[places[-1] + 1 :])
    if tied and before:
        behind.append(max(before, key=lambda each: each.elements))
    found = before if stage == 0 else []
    found = found + [each for each in weights if each.block in own]
    return tuple(found + (behind if stage == stages - 1 else []))


def activations_of_stage(
    whole: Activations, blocks: int, stage: int, stages: int, accumulation: int
) -> Activations:
    """Of one micro batch on this stage, and how many micro batches are in flight there."""
    in_flight = min(stages - stage, max(1, accumulation))
    last = stage == stages - 1
    own = len(blocks_of_stage(blocks, stage, stages))
    return replace(
        whole,
        blocks=own,
        in_flight=in_flight,
        logits_forward=whole.logits_forward if last else 0,
        logits_backward=whole.logits_backward if last else 0,
        on_host=whole.on_host * own * in_flight // max(1, blocks),
    )

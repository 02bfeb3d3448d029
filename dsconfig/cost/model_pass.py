"""Forward and backward through the model: what the activations do to a timeline.

Runtimes differ in what they do with weights and gradients on the way; activations live and
die the same in all of them.
"""

from collections.abc import Callable, Iterator, Sequence

from dsconfig.cost.timeline import Part, Timeline
from dsconfig.cost.workload import OUTSIDE, Weight, Workload


def stretches(weights: Sequence[Weight]) -> Iterator[tuple[int, list[int]]]:
    """(block, indices of its weights) in order; what lies between blocks as OUTSIDE."""
    current: int | None = None
    indices: list[int] = []
    for index, weight in enumerate(weights):
        if current is not None and weight.block != current:
            yield current, indices
            indices = []
        current = weight.block
        indices.append(index)
    if current is not None:
        yield current, indices


class ActivationParts:
    """The parts under which a run's activations are counted, with this run's formulas."""

    def __init__(self, job: Workload) -> None:
        saved = job.activations
        pointer = saved.pointer
        self.kept = Part("activations", pointer, saved.formula)
        self.working = Part(
            "working set of one block",
            "/activation_checkpointing" if saved.recomputed else pointer,
            "gradients of its activations" + (", and itself rebuilt" if saved.recomputed else ""),
        )
        self.outside = Part(
            "embedding output and token ids", pointer, "what the loss and the last norm keep"
        )
        self.logits = Part("logits and loss", pointer, saved.loss_formula)


def run_forward(
    job: Workload, line: Timeline, enter_block: Callable[[int, list[int]], None] | None = None
) -> None:
    """Hold what forward keeps, block by block; ``enter_block`` sees each stretch first."""
    parts = ActivationParts(job)
    saved = job.activations
    line.hold(parts.outside, saved.outside)
    counted = 0
    for block, indices in list(stretches(job.weights)):
        if enter_block is not None:
            enter_block(block, indices)
        if block != OUTSIDE and counted < saved.blocks:
            line.hold(parts.kept, saved.per_block)
            counted += 1
    if counted < saved.blocks:
        line.hold(parts.kept, saved.per_block * (saved.blocks - counted))
    line.hold(parts.logits, saved.logits_forward)


def run_backward(
    job: Workload, line: Timeline, differentiate: Callable[[int, list[int]], None]
) -> None:
    """Go back block by block; ``differentiate`` makes the gradients of one stretch."""
    parts = ActivationParts(job)
    saved = job.activations
    line.hold(parts.logits, max(0, saved.logits_backward - saved.logits_forward))
    line.free(parts.logits)
    left = saved.blocks
    backwards = list(stretches(job.weights))[::-1]
    counted = sum(block != OUTSIDE for block, _ in backwards)
    for block, indices in backwards:
        inside = block != OUTSIDE
        if inside:
            line.hold(parts.working, saved.recomputed + saved.temporaries)
        differentiate(block, indices)
        if inside:
            line.free(parts.working)
            gone = min(left, max(1, saved.blocks // max(1, counted)))
            line.free(parts.kept, saved.per_block * gone)
            left -= gone
    line.free(parts.kept)
    line.free(parts.outside)

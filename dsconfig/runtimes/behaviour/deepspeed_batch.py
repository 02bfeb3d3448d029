"""DeepSpeed's batch triple, with its own arithmetic: no type is checked, floats stay floats."""

from typing import Any

from dsconfig.runtimes.base import Source
from dsconfig.runtimes.behaviour.replay import Replay, Stops, about

GLOBAL = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
TRIPLE = (GLOBAL, MICRO, STEPS)


def solve(replay: Replay, ranks: int | float) -> None:
    """Derive what is absent and assert the rest, in place; ``ranks`` are data-parallel."""
    config = replay.config
    given = {path: config.get(path) for path in TRIPLE}
    with about(*(path for path in TRIPLE if given[path] is not None)):
        total, micro, steps = _derive(given, ranks)
        config.update({GLOBAL: total, MICRO: micro, STEPS: steps})
        _assert(total, micro, steps, ranks)
    for path in TRIPLE:
        if given[path] is None:
            replay.wrote(path, _RULE[path], Source.DERIVED, data_parallel=ranks)


def _derive(given: dict[str, Any], ranks: int | float) -> tuple[Any, Any, Any]:
    total, micro, steps = (given[path] for path in TRIPLE)
    if total is not None and micro is not None:
        if steps is None:
            steps = total // micro
            steps //= ranks
    elif total is not None and steps is not None:
        micro = total // ranks
        micro //= steps
    elif micro is not None and steps is not None:
        total = micro * steps
        total *= ranks
    elif total is not None:
        micro, steps = total // ranks, 1
    elif micro is not None:
        total, steps = micro * ranks, 1
    else:
        said = "neither train_batch_size nor train_micro_batch_size_per_gpu is given"
        raise Stops("AssertionError", said, GLOBAL, MICRO)
    return total, micro, steps


def _assert(total: Any, micro: Any, steps: Any, ranks: int | float) -> None:
    for path, value in ((GLOBAL, total), (MICRO, micro), (STEPS, steps)):
        if not value > 0:
            raise Stops("AssertionError", f"{path} comes to {value}, which is not above 0", path)
    if total != micro * steps * ranks:
        said = f"{total} is not {micro} * {steps} * {ranks} (micro * accumulation * ranks)"
        raise Stops("AssertionError", said, *TRIPLE)


_RULE = {
    GLOBAL: "micro batch x accumulation x data-parallel ranks",
    MICRO: "global batch // ranks // accumulation",
    STEPS: "global batch // micro batch // ranks; 1 where only one member is given",
}
"""Floor division, from left to right."""

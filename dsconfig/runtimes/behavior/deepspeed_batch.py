"""DeepSpeed's batch arithmetic on the user's own values: no type checks, floats stay floats."""

from dsconfig.batch import GLOBAL, KEYS, MICRO, STEPS, Triple
from dsconfig.runtimes.base import Source
from dsconfig.runtimes.behavior.replay import Replay, ReplayStop, errors_at


def solve(replay: Replay, ranks: int | float) -> None:
    """Derive missing values and check the rest, in place; ``ranks`` are data-parallel."""
    config = replay.config
    given = Triple(*(config.get(key) for key in KEYS))
    with errors_at(*given.given):
        solved = given.derived(ranks)
        if solved is None:
            message = "neither train_batch_size nor train_micro_batch_size_per_gpu is set"
            raise ReplayStop("AssertionError", message, GLOBAL, MICRO)
        config.update(zip(KEYS, solved, strict=True))
        for key, value in zip(KEYS, solved, strict=True):
            if not value > 0:
                raise ReplayStop("AssertionError", f"{key} is {value}; it must be positive", key)
        if not solved.holds(ranks):
            total, micro, steps = solved
            message = f"{total} is not {micro} * {steps} * {ranks} (micro * accumulation * ranks)"
            raise ReplayStop("AssertionError", message, *KEYS)
    for key in KEYS:
        if key not in given.given:
            alone = key == STEPS and len(given.given) == 1
            rule, source = _ALONE if alone else _RULES[key]
            replay.record(key, rule, source, data_parallel=ranks)


_RULES = {
    GLOBAL: ("micro batch x accumulation x data-parallel ranks", Source.DERIVED),
    MICRO: ("global batch // ranks // accumulation", Source.DERIVED),
    STEPS: ("global batch // micro batch // ranks", Source.DERIVED),
}
_ALONE = ("1, DeepSpeed's default if only one of the others is set", Source.DEFAULT)

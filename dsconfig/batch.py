"""The batch of one optimizer step: global = micro batch x accumulation x data-parallel ranks.

Pure arithmetic on whatever numbers it is given, and by floor division from left to right, as
DeepSpeed has it (``DeepSpeedConfig._set_batch_related_parameters``): what fails to multiply out
afterwards is a contradiction. A text or a list among the numbers raises what Python raises.
"""

import math
from typing import Any, NamedTuple

GLOBAL = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
KEYS = (GLOBAL, MICRO, STEPS)
"""In the order of the fields of :class:`Triple`."""


def ranks_sharing(ranks: Any, sequence: Any) -> Any:
    """Ranks that see different samples where ``sequence_parallel_size`` of them share one.

    DeepSpeed divides without rounding: half a rank is possible.
    """
    return ranks / sequence


class Triple(NamedTuple):
    """Samples of a step, samples of one pass on one rank, passes of a step; None where open."""

    global_batch: Any
    micro_batch: Any
    accumulation: Any

    @property
    def given(self) -> dict[str, Any]:
        """The members that are not open, by key."""
        return {key: value for key, value in zip(KEYS, self, strict=True) if value is not None}

    def derived(self, ranks: float) -> "Triple | None":
        """With every member; None where neither the global nor the micro batch is given."""
        total, micro, steps = self
        if micro is None:
            if total is None:
                return None
            micro = total // ranks if steps is None else total // ranks // steps
            steps = 1 if steps is None else steps
        elif steps is None:
            steps = 1 if total is None else total // micro // ranks
        return Triple(micro * steps * ranks if total is None else total, micro, steps)

    def holds(self, ranks: float) -> bool:
        """Whether three given members multiply out."""
        return self.global_batch == self.micro_batch * self.accumulation * ranks

    @property
    def ranks(self) -> int | None:
        """The only number of data-parallel ranks that goes with three whole members above zero.

        None where one of them is open or something else, or where no number goes with them.
        """
        if not all(type(each) is int and each > 0 for each in self):
            return None
        ranks, rest = divmod(self.global_batch, self.micro_batch * self.accumulation)
        return None if rest else ranks

    def unit(self, ranks: float) -> float:
        """What the global batch must be a multiple of, by the other members that are given."""
        return (self.micro_batch or 1) * (self.accumulation or 1) * ranks

    def nearest(self, ranks: float) -> tuple[float, ...]:
        """The global batches that go with the other members: the multiples of their product
        around the one given, or their product alone where both are given.

        None for numbers that are not finite.
        """
        unit, total = self.unit(ranks), self.global_batch or 0
        if not (math.isfinite(total) and math.isfinite(unit)):
            return ()
        if self.micro_batch is not None and self.accumulation is not None:
            return (int(unit) if unit == int(unit) else unit,)
        if unit < 1:
            return ()
        below = int(total // unit) * int(unit)
        return tuple(size for size in (below, below + int(unit)) if size > 0)


def on_other_ranks(triple: Triple, ranks: int) -> Triple:
    """The same global batch on another number of ranks, its micro batch no larger than before.

    Raises ValueError where the ranks cannot share the global batch evenly.
    """
    each, rest = divmod(triple.global_batch, ranks)
    if rest or not each:
        raise ValueError(
            f"{ranks} ranks cannot share a {GLOBAL} of {triple.global_batch} evenly: train with a "
            "number of ranks that divides it"
        )
    micro = next(size for size in range(triple.micro_batch, 0, -1) if each % size == 0)
    return Triple(triple.global_batch, micro, each // micro)


class Contradiction(NamedTuple):
    """``given`` leads to ``derived``, which does not multiply out over ``ranks``."""

    given: Triple
    derived: Triple
    ranks: float


def solve(given: Triple, ranks: float) -> Triple | Contradiction | None:
    """All three members, numbers above zero given; None where too few of them are."""
    derived = given.derived(ranks)
    if derived is None or derived.holds(ranks):
        return derived
    return Contradiction(given, derived, ranks)

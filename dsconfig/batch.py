"""The batch of one optimizer step: global = micro batch x accumulation x data-parallel ranks.

Pure arithmetic by floor division from left to right, as in DeepSpeed
(``DeepSpeedConfig._set_batch_related_parameters``): a result that does not multiply out is a
contradiction. Non-numbers raise what Python raises.
"""

import sys
from typing import Any, NamedTuple

GLOBAL = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
KEYS = (GLOBAL, MICRO, STEPS)
"""In the order of the fields of :class:`Triple`."""


def ranks_sharing(ranks: Any, sequence: Any) -> Any:
    """Return the ranks that see different samples if ``sequence_parallel_size`` of them share one.

    DeepSpeed divides without rounding: half a rank is possible.
    """
    return ranks / sequence


class Triple(NamedTuple):
    """Samples per step, samples per micro step and rank, micro steps per step; None if open."""

    global_batch: Any
    micro_batch: Any
    accumulation: Any

    @property
    def given(self) -> dict[str, Any]:
        """Return the members that are not open, by key."""
        return {key: value for key, value in zip(KEYS, self, strict=True) if value is not None}

    def derived(self, ranks: float) -> "Triple | None":
        """Return the triple with every member; None if neither the global nor the micro batch is
        given."""
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
        """Return whether three given members multiply out."""
        return self.global_batch == self.micro_batch * self.accumulation * ranks

    @property
    def ranks(self) -> int | None:
        """Return the only number of data-parallel ranks compatible with three positive integer
        members.

        None if one of them is open or not a positive integer, or if no number is compatible.
        """
        if not all(type(each) is int and each > 0 for each in self):
            return None
        ranks, rest = divmod(self.global_batch, self.micro_batch * self.accumulation)
        return None if rest else ranks

    def unit(self, ranks: float) -> float:
        """Return the number that the global batch must be a multiple of, by the other given
        members."""
        return (self.micro_batch or 1) * (self.accumulation or 1) * ranks

    def nearest(self, ranks: float) -> tuple[float, ...]:
        """Return the global batches compatible with the other members: the multiples of their
        product around the given one, or only their product if both are given.

        Empty for numbers that are not finite or too large for a float.
        """
        unit, total = self.unit(ranks), self.global_batch or 0
        if not (abs(total) <= sys.float_info.max and abs(unit) <= sys.float_info.max):
            return ()
        if self.micro_batch is not None and self.accumulation is not None:
            return (int(unit) if unit == int(unit) else unit,)
        if unit < 1:
            return ()
        below = int(total // unit) * int(unit)
        return tuple(size for size in (below, below + int(unit)) if size > 0)


def on_other_ranks(triple: Triple, ranks: int) -> Triple:
    """Return the same global batch on another number of ranks, with at most the same micro batch.

    Raises ValueError if the ranks cannot share the global batch evenly.
    """
    each, rest = divmod(triple.global_batch, ranks)
    if rest or not each:
        raise ValueError(
            f"{ranks} ranks cannot share a {GLOBAL} of {triple.global_batch} evenly: use a "
            "number of ranks that divides it"
        )
    micro = next(size for size in range(triple.micro_batch, 0, -1) if each % size == 0)
    return Triple(triple.global_batch, micro, each // micro)


class Contradiction(NamedTuple):
    """``given`` leads to ``derived``, which does not multiply out over ``ranks``."""

    given: Triple
    derived: Triple
    ranks: float


def solve(given: Triple, ranks: float, tensor: int = 1) -> Triple | Contradiction | None:
    """Return all three members from positive given ones; None if too few are given.

    ``tensor``: the ranks that share each sample's layers. Beside both other members the global
    batch may count the sample once for each of them, as DeepSpeed requires.
    """
    if tensor > 1 and given.ranks == ranks * tensor:
        given = given._replace(global_batch=given.global_batch // tensor)
    derived = given.derived(ranks)
    if derived is None or derived.holds(ranks):
        return derived
    return Contradiction(given, derived, ranks)

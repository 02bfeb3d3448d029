"""The largest micro batch that the estimate says fits."""

from collections.abc import Callable
from dataclasses import dataclass

from dsconfig.report import Effect
from dsconfig.resolver import zero
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.sizing import GIB, TIGHT, Sizer, missing_flags, sizer

LARGEST = 2**16
"""Nobody needs more samples in one pass; the search stops here."""


@dataclass(slots=True)
class Search:
    """A bisection with a record of what was tried."""

    need: Callable[[int], int]
    capacity: int
    tried: dict[int, int]

    def fits(self, micro: int) -> bool:
        if micro not in self.tried:
            self.tried[micro] = self.need(micro)
        return self.tried[micro] <= self.capacity

    def largest(self, candidates: list[int]) -> int | None:
        """The last of ascending candidates that fits (memory grows with the micro batch)."""
        low, high = 0, len(candidates)
        while low < high:
            middle = (low + high) // 2
            if self.fits(candidates[middle]):
                low = middle + 1
            else:
                high = middle
        return candidates[low - 1] if low else None

    def record(self) -> dict[str, str]:
        """What was tried, for the ledger: micro batch to GiB."""
        return {str(micro): f"{used / GIB:.2f} GiB" for micro, used in sorted(self.tried.items())}


def largest(draft: Draft, path: str, per_rank: int | None) -> int | None:
    """Search for it and remember the search; None when there is no answer, with a diagnostic.

    ``per_rank`` is the samples of one rank in one step: only its divisors come into question.
    Without it the global batch is open, and every size does.
    """
    if draft.given_up:
        return None  # no stage fits: that was said, and there is nothing to search
    priced = sizer(draft)
    device = draft.facts.device
    if priced is None or device is None or device.memory_bytes is None:
        flags = missing_flags(draft.facts)
        remedy = f"give --micro-batch, or {' and '.join(flags)}" if flags else "give --micro-batch"
        draft.missing(path, "the largest micro batch that fits cannot be estimated", remedy)
        return None
    settings = priced.base.zero
    search = Search(lambda micro: priced.need(settings, micro).device, device.memory_bytes, {})
    found = search.largest(divisors(per_rank) if per_rank else doubled(search))
    if found is not None:
        search.fits(found)
    if found is None:
        _not_even_one(draft, path, search, priced)
        return None
    peak = search.tried[found]
    draft.searches[path] = {
        "device": device.name,
        "capacity_bytes": device.memory_bytes,
        "peak_bytes": peak,
        "tried": search.record(),
    }
    if peak > device.memory_bytes * TIGHT:
        _tight(draft, path, found, device.memory_bytes - peak)
    return found


def _tight(draft: Draft, path: str, micro: int, left: int) -> None:
    draft.report(
        "DSC155",
        "tight-fit",
        Effect.NOTE,
        path,
        f"a micro batch of {micro} leaves {left / GIB:.2f} GiB of the device by the estimate",
        "should it run out of memory, write the next smaller one",
    )


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return small + [number // size for size in reversed(small) if size * size != number]


def doubled(search: Search) -> list[int]:
    """1, 2, 3 ... up to the first power of two that does not fit."""
    top = 1
    while top < LARGEST and search.fits(top):
        top *= 2
    return list(range(1, top + 1))


def _not_even_one(draft: Draft, path: str, search: Search, priced: Sizer) -> None:
    used = search.tried[min(search.tried)]
    draft.report(
        "DSC252",
        "micro-batch-does-not-fit",
        Effect.REFUSED,
        path,
        f"a micro batch of {min(search.tried)} needs {used / GIB:.1f} GiB on a device of "
        f"{search.capacity / GIB:.1f} GiB",
        f'{zero.way_out(draft, priced)}; write "auto" for the stage and the offload devices',
    )

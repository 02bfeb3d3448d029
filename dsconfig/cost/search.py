"""The search for stage, tiers, recomputation, buckets and batch, as far as a file leaves them open.

[Note: the policy] Every arrangement of stage, tiers and recomputation is evaluated with the largest
micro batch that leaves 5 % of every memory free, and the fastest per sample is chosen. If none
leaves that much, each is evaluated with the largest one that needs no more than the smallest, so
that more memory never results in a smaller batch. Fixing one of the answers does not change the
others: the overall fastest is also the fastest of those that share a setting with it. ``resolve``,
``tune``, ``init``, ``--fit`` and the remedies of diagnostics use this search.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import inf

from dsconfig.cost.activations import Recompute
from dsconfig.cost.choices import Choice, supports_stage
from dsconfig.cost.fit import TO_SPARE
from dsconfig.cost.search_space import (
    LARGEST_MICRO_BATCH,
    STAGE,
    Candidate,
    Space,
)
from dsconfig.cost.step_time import StepTime


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The choice of the policy, and faster ones that do not fit even with the smallest batch."""

    chosen: Candidate | None
    skipped: Sequence[Choice] = ()


def fastest(space: Space) -> SearchResult:
    """Return the choice of the policy and those skipped before it."""
    best, fitting, skipped, tight = inf, list[Candidate](), list[Choice](), list[Choice]()
    for choice in space.arrangements():
        if space.quickest(choice) > AS_FAST * best:
            break
        small = space.fitting(choice)
        if small is None or small.verdict.tight:
            skipped.append(choice)
            tight += [] if small is None else [choice]
        elif _may_reach(space, choice, AS_FAST * best):
            fitting.append(_largest(space, choice) or small)
            best = min(best, fitting[-1].time.seconds_per_sample)
    if not fitting:
        fitting = [_tight(space, each) or space.candidate(each) for each in tight]
        skipped = [each for each in skipped if each not in tight]
    if not fitting:
        return SearchResult(None, skipped)
    return SearchResult(_least_sharded(space, _at_lower_stages(space, fitting) or fitting), skipped)


def _at_lower_stages(space: Space, fitting: Sequence[Candidate]) -> list[Candidate]:
    """Return the fastest choice at stages 1 and 2, where it fits and sends no more.

    Stage 3 may hide what they wait for, but each of its units has costs that are not counted.
    """
    best = min(fitting, key=lambda candidate: candidate.time.seconds_per_sample)
    stages = range(1, best.choice.stage) if STAGE in space.open else ()
    choices = (replace(best.choice, stage=stage) for stage in stages)
    candidates = (
        space.fitting(choice)
        for choice in choices
        if choice.works
        and choice.stage in space.stages
        and supports_stage(space.facts, choice.stage)
    )
    return [
        candidate
        for candidate in candidates
        if candidate is not None
        and not candidate.verdict.tight
        and candidate.time.high <= AS_FAST * best.time.high
    ]


def _may_reach(space: Space, choice: Choice, seconds: float) -> bool:
    """Return whether the smallest batch that is at least as fast fits: a quick test before
    searching the largest one."""
    sizes = space.batches.sizes

    def serves(micro: int) -> bool:
        return space.time(space.batched(choice, micro)).seconds_per_sample <= seconds

    place = bisect_left(sizes, True, key=serves)
    if place == len(sizes):
        return False
    found = space.fitting(space.batched(choice, sizes[place]))
    return found is not None and found.verdict.has_headroom


AS_FAST = 1.005
"""Ratio of sample times treated as equal: published runs of one config differ by more."""


def _least_sharded(space: Space, fitting: Sequence[Candidate]) -> Candidate:
    """Return the lowest of the stages that are as fast as the fastest, unless another saves more
    than 5 % of the device.

    Below 5 % the estimate does not distinguish them.
    """
    fastest = min(fitting, key=lambda candidate: candidate.time.seconds_per_sample)
    equals = [
        each
        for each in fitting
        if replace(each.choice, stage=0) == replace(fastest.choice, stage=0)
        and _is_as_fast(each.time, fastest.time)
    ]
    least = min(each.device_bytes for each in equals)
    room = TO_SPARE * (space.facts.device_bytes or least)
    lean = (each for each in equals if each.device_bytes <= least + room)
    return min(lean, key=lambda each: each.choice.stage)


def _is_as_fast(mine: StepTime, other: StepTime) -> bool:
    """Return whether it is as fast however much communication is hidden: stage 3 sends more."""
    pairs = ((mine.low, other.low), (mine.seconds, other.seconds), (mine.high, other.high))
    return all(one <= AS_FAST * another for one, another in pairs)


def by_footprint(space: Space) -> list[Choice]:
    """Return every arrangement, most likely to fit first: full recomputation, then slower ones."""
    found = space.arrangements()[::-1]
    return sorted(found, key=lambda each: each.recompute is not Recompute.FULL)


def fits(space: Space, choice: Choice) -> bool:
    """Return whether an arrangement fits with the smallest batch."""
    return space.fitting(space.batched(choice, space.batches.sizes[0])) is not None


def any_fits(space: Space) -> bool:
    """Return whether any arrangement fits."""
    return any(fits(space, choice) for choice in by_footprint(space))


def with_largest_batch(space: Space, choice: Choice) -> Candidate | None:
    """Return an arrangement with the largest micro batch that leaves memory to spare, otherwise
    with the largest that needs no more than the smallest that fits; None if none does."""
    return _largest(space, choice) or _tight(space, choice)


def _largest(space: Space, choice: Choice) -> Candidate | None:
    """Return the largest batch that leaves memory to spare."""
    limit = (space.facts.device_bytes or inf) * (1 - TO_SPARE)
    return _search_batch(space, choice, lambda each: each.verdict.has_headroom, limit)


def _tight(space: Space, choice: Choice) -> Candidate | None:
    """Return the largest batch that needs no more than the smallest that fits.

    One micro step that takes a full share, which needs no accumulated gradients, may fit where
    smaller ones do not.
    """
    sizes = space.batches.sizes
    ends = sizes[:1] if len(sizes) == LARGEST_MICRO_BATCH else (sizes[0], sizes[-1])
    tried = (space.with_batch(choice, size) for size in ends)
    least = next((each for each in tried if each.verdict.fits), None)
    if least is None:
        return None
    needed = _needed(least)

    def needs_no_more(candidate: Candidate) -> bool:
        pairs = zip(_needed(candidate), needed, strict=True)
        return candidate.verdict.fits and all(mine <= most for mine, most in pairs)

    return _search_batch(space, choice, needs_no_more, least.device_bytes)


def _needed(candidate: Candidate) -> tuple[int, int, int]:
    """Return the bytes that decide whether it fits, and whether tightly."""
    return candidate.device_bytes, candidate.option.device.visible_bytes, candidate.host_bytes


def _search_batch(
    space: Space, choice: Choice, accepts: Callable[[Candidate], bool], limit: float
) -> Candidate | None:
    """Return the largest accepted batch. ``limit``: bytes of the device that it should fill.

    Search by interpolation, since bytes grow nearly in proportion; every third try bisects.
    """
    sizes, tried = space.batches.sizes, list[Candidate]()

    def serves(place: int) -> bool:
        tried.append(space.with_batch(choice, sizes[place]))
        return accepts(tried[-1])

    # A full share in one micro step needs no accumulated gradients.
    if len(sizes) < LARGEST_MICRO_BATCH and serves(len(sizes) - 1):
        return tried[-1]
    low, high = 0, len(sizes)  # the first ``low`` sizes fit, none from ``high`` on
    for attempt in count():
        if low >= high:
            return space.with_batch(choice, sizes[low - 1]) if low else None
        place = min(attempt, 1) if attempt < 2 else _expected(space, tried, limit)
        if attempt % 3 == 1 and attempt > 1:
            place = (low + high) // 2
        place = min(max(place, low), high - 1)
        low, high = (place + 1, high) if serves(place) else (low, place)


def _expected(space: Space, tried: list[Candidate], limit: float) -> int:
    """Return the index of the size that fills ``limit`` bytes, extrapolated from the last two
    estimates."""
    one, other = sorted(tried[-2:], key=lambda each: each.choice.micro_batch)
    apart = other.choice.micro_batch - one.choice.micro_batch
    grown = other.device_bytes - one.device_bytes
    if grown <= 0:
        return len(space.batches.sizes)
    micro = one.choice.micro_batch + (limit - one.device_bytes) * apart / grown
    return bisect_right(space.batches.sizes, micro) - 1

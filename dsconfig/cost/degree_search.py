"""The search over parallel degrees: ``tune``, ``init``, ``resolve`` and ``--fit`` use it.

[Note: when degrees are searched] Ranks that share a sample exchange activations in every layer, so
a model that fits on data-parallel ranks without offload is not divided. Otherwise every axis that
the target program executes is tried on its own, from its smallest degree up to the first with which
the model fits without offload; two axes at once only if no single one suffices. The fastest per
sample is chosen.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from dsconfig.cost import search
from dsconfig.cost.divisions import (
    Rejected,
    degrees_of,
    described,
    indivisible,
    is_open,
    why_none,
    why_not,
    with_degree,
)
from dsconfig.cost.search import SearchResult
from dsconfig.cost.search_space import Candidate, Space, open_space
from dsconfig.facts.facts import Facts
from dsconfig.facts.naming import subject
from dsconfig.mesh import UNDIVIDED
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.runtimes.capabilities import (
    AXES,
    label_of,
    not_executed,
    requires_equal_parts,
    settings_of,
    stages_under,
)
from dsconfig.runtimes.effective import Tier

SpaceOf = Callable[[Facts], Space | None]
"""Makes the search space for facts with other degrees; None if they do not allow an estimate."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One combination of degrees: its space, and what the search in it found."""

    space: Space
    result: SearchResult

    @property
    def is_comfortable(self) -> bool:
        """Whether it fits with headroom and without offload."""
        found = self.result.chosen
        return (
            found is not None
            and found.verdict.has_headroom
            and found.choice.optimizer is found.choice.parameters is Tier.DEVICE
        )

    @property
    def closest(self) -> Candidate | None:
        """The arrangement that needs least device memory, if none fits."""
        choices = self.space.arrangements()
        found = (self.space.candidate(choice) for choice in choices)
        return min(found, key=lambda each: each.device_bytes, default=None)


@dataclass(frozen=True, slots=True)
class DegreeSearch:
    """The chosen combination, the others that were tried, and the degrees that were not."""

    chosen: Tried
    others: tuple[Tried, ...] = ()
    rejected: tuple[Rejected, ...] = ()


def best(facts: Facts, program: Runtime, space_of: SpaceOf) -> DegreeSearch | None:
    """Return the fastest combination of degrees; None if the facts do not allow an estimate.

    Only that of the facts if they set one. [Note: when degrees are searched]
    """
    first = _tried(facts, program, space_of)
    if first is None:
        return None
    if first.is_comfortable or not is_open(facts) or (facts.world_size or 1) == 1:
        return DegreeSearch(first, rejected=tuple(_not_needed(facts, program, first)))
    tried, rejected = [first], list[Rejected]()
    for axis in AXES:
        tried += _along(axis, facts, program, space_of, rejected)
    if not any(each.result.chosen for each in tried):
        tried += _pairs(facts, program, space_of)
    fitting = [each for each in tried if each.result.chosen]
    chosen = min(fitting, key=_rank) if fitting else min(tried, key=_lacking)
    return DegreeSearch(
        chosen, tuple(each for each in tried if each is not chosen), tuple(rejected)
    )


def _rank(tried: Tried) -> tuple[bool, float, int]:
    """Order by headroom, then time; among equally fast ones the least divided first."""
    found = tried.result.chosen
    assert found is not None
    return (found.verdict.tight, found.time.seconds_per_sample, found.degrees.per_sample)


def _lacking(tried: Tried) -> tuple[int, int]:
    """Order by the device memory that is missing; then the least divided first."""
    closest, memory = tried.closest, tried.space.facts.device_bytes or 0
    assert closest is not None  # a combination without arrangements is not tried
    return (max(0, closest.device_bytes - memory), closest.degrees.per_sample)


def executed(space: Space, program: Runtime) -> Space:
    """Return the space with what the target program requires for its degrees: stages, and
    settings."""
    degrees = space.facts.degrees
    return replace(
        space,
        stages=stages_under(program, degrees),
        settings=settings_of(program, degrees, space.facts.world_size or 1),
    )


def _tried(facts: Facts, program: Runtime, space_of: SpaceOf) -> Tried | None:
    space = space_of(facts)
    if space is None:
        return None
    space = executed(space, program)
    return Tried(space, search.fastest(space)) if space.arrangements() else None


def _along(
    axis: str, facts: Facts, program: Runtime, space_of: SpaceOf, rejected: list[Rejected]
) -> Iterator[Tried]:
    """Yield the degrees of one axis that are possible, up to the first that fits."""
    reason = why_none(axis, facts, program)
    if reason:
        rejected.append(Rejected(axis, None, reason))
        return
    sufficient = 0
    for degree in degrees_of(axis, facts):
        if sufficient:
            rejected.append(Rejected(axis, degree, f"not needed: {sufficient} fits"))
            continue
        divided = with_degree(facts, axis, degree)
        obstacle = why_not(axis, divided, program)
        if obstacle:
            rejected.append(Rejected(axis, degree, obstacle))
            continue
        found = _tried(divided, program, space_of)
        if found is None:
            rejected.append(Rejected(axis, degree, "no stage supports it here"))
            continue
        sufficient = degree if found.is_comfortable else 0
        yield found


def _pairs(facts: Facts, program: Runtime, space_of: SpaceOf) -> list[Tried]:
    """Return the combinations of two axes that fit, each the smallest of its pair."""
    open_axes = [axis for axis in AXES if not why_none(axis, facts, program)]
    degrees = {axis: degrees_of(axis, facts) for axis in open_axes}
    found: list[Tried] = []
    for one, other in combinations(open_axes, 2):
        products = sorted((a * b, a, b) for a in degrees[one] for b in degrees[other])
        for _, first, second in products:
            divided = with_degree(with_degree(facts, one, first), other, second)
            if why_not(one, divided, program) or why_not(other, divided, program):
                continue
            tried = _tried(divided, program, space_of)
            if tried is not None and tried.result.chosen is not None:
                found.append(tried)
                break
    return found


def _not_needed(facts: Facts, program: Runtime, first: Tried) -> Iterator[Rejected]:
    """Yield why no axis was searched."""
    if facts.degrees != UNDIVIDED:
        reason = f"not searched: {described(facts.degrees)} is set"
    elif not is_open(facts):
        given = (facts.origins.get(f"{axis}_parallel") for axis in AXES)
        reason = f"not searched: {', '.join(filter(None, given))} is set to 1"
    elif (facts.world_size or 1) == 1:
        reason = "there is one rank"
    else:
        reason = "not needed: fits with data parallelism alone"
    for axis in AXES:
        yield Rejected(axis, None, why_none(axis, facts, program) or reason)


def of_facts(
    facts: Facts,
    program: str | Runtime,
    *,
    runtime: str | Runtime | None = None,
    fixed: Mapping[str, Any] | None = None,
    selective: bool = True,
) -> DegreeSearch:
    """Return the search with everything open that the facts do not set.

    ``runtime`` is the program whose memory counts, by default the target itself. Raises ValueError
    as ``open_space`` does, and for degrees of the facts that the target does not execute.
    """
    target = runtime_of(program)
    if problem := not_executed(target, facts.degrees):
        raise ValueError(problem)
    for found in indivisible(facts):
        if requires_equal_parts(target, found.axis):
            problem = f"{found.degree}: {found.problem}; use {found.use}"
            raise ValueError(f"{subject(f'{found.axis}_parallel')}: {problem}")
    found = best(
        facts,
        target,
        lambda known: open_space(known, runtime or target, fixed, selective=selective),
    )
    if found is None:
        raise ValueError(
            f"{target.name} executes {label_of(facts.degrees).strip(', ')} only at the ZeRO stages "
            f"{', '.join(map(str, stages_under(target, facts.degrees)))}"
        )
    return found

"""Every candidate of the search, with the reason why each other one was not chosen."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from dsconfig.cost import degree_search
from dsconfig.cost.activations import Recompute, sets_recomputation
from dsconfig.cost.choices import Choice
from dsconfig.cost.degree_search import Tried
from dsconfig.cost.divisions import Rejected
from dsconfig.cost.search import AS_FAST, with_largest_batch
from dsconfig.cost.search_space import Candidate, Space
from dsconfig.cost.workload import require_facts
from dsconfig.facts.facts import Facts
from dsconfig.facts.naming import subject
from dsconfig.report.sizes import size
from dsconfig.runtimes.base import Runtime


class Ranking(NamedTuple):
    """The chosen candidate, the others by speed, then those that do not fit; and the parallel
    degrees that were not tried."""

    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]


def tune(
    facts: Facts,
    *,
    runtime: str | Runtime = "dsengine",
    fixed: Mapping[str, Any] | None = None,
) -> tuple[Candidate, ...]:
    """Return the candidates of ``ranking``."""
    return ranking(facts, runtime=runtime, fixed=fixed).candidates


def ranking(
    facts: Facts,
    *,
    runtime: str | Runtime = "dsengine",
    fixed: Mapping[str, Any] | None = None,
) -> Ranking:
    """Return every arrangement at the chosen degrees with its largest batch, and the best one at
    each other combination of degrees.

    Raises ValueError if the model, the number of devices or the device memory is unknown.
    """
    require_facts(facts, device=True)
    ranks, total = facts.data_parallel or 1, facts.training and facts.training.global_batch_size
    if total and total % ranks:
        raise ValueError(f"{subject('global_batch')}: {total} is not a multiple of {ranks} ranks")
    found = degree_search.of_facts(facts, runtime, fixed=fixed)
    space, best = found.chosen.space, found.chosen.result.chosen
    fitting, out = list[Candidate](), list[Candidate]()
    for choice in space.arrangements():
        large = with_largest_batch(space, choice)
        if _is_pointless(space, choice, large):
            continue
        if large is None:
            small = space.candidate(choice)
            out.append(replace(small, reason=small.verdict.shortfall))
        else:
            lost = _why_not_chosen(large, best) if best and large.choice != best.choice else ""
            fitting.append(replace(large, reason=lost))
    for candidate in _at_other_degrees(found.others, best):
        (fitting if candidate.verdict.fits else out).append(candidate)
    fitting.sort(key=lambda each: (bool(each.reason), each.time.seconds_per_sample))
    own = space.facts.degrees
    out.sort(key=lambda each: (each.degrees != own, each.option.device.needed_bytes))
    return Ranking((*fitting, *out), found.rejected)


def _at_other_degrees(others: tuple[Tried, ...], best: Candidate | None) -> Iterator[Candidate]:
    """Yield the best candidate of each other combination of degrees."""
    for tried in others:
        fastest = tried.result.chosen
        if fastest is not None and best is not None:
            yield replace(fastest, reason=_why_not_chosen(fastest, best))
        elif (closest := tried.closest) is not None:
            yield replace(closest, reason=closest.verdict.shortfall)


def _is_pointless(space: Space, choice: Choice, large: Candidate | None) -> bool:
    """Return whether selective recomputation allows no larger batch, or none at all."""
    if choice.recompute is not Recompute.SELECTIVE or sets_recomputation(space.facts):
        return False
    plain = with_largest_batch(space, replace(choice, recompute=Recompute.NONE))
    if large is None or plain is None:
        return large is None
    return plain.verdict.has_headroom and plain.choice.micro_batch >= large.choice.micro_batch


def _why_not_chosen(candidate: Candidate, best: Candidate) -> str:
    """Explain the difference from the chosen candidate by the time per sample."""
    if candidate.verdict.tight and not best.verdict.tight:
        return "fits with less than 5% free"
    mine, others = candidate.time, best.time
    ratio = mine.seconds_per_sample / others.seconds_per_sample
    if ratio < AS_FAST:
        more = candidate.device_bytes - best.device_bytes
        if more > 0:
            return f"as fast, {size(more)} more"
        if candidate.degrees != best.degrees:
            return "as fast, but more divided"
        same = "as fast" if more < 0 else "the same"
        stage, chosen = candidate.choice.stage, best.choice.stage
        if stage == chosen:
            return f"{same}, but with other settings"
        return f"{same}, but {'more' if stage > chosen else 'less'} sharded"
    again = candidate.choice.recompute is not best.choice.recompute

    def longer(part: str) -> float:
        return getattr(mine, part) / mine.samples - getattr(others, part) / others.samples

    causes = {
        "offload": longer("offload"),
        "communication": longer("communication"),
        "recomputation" if again else "update": longer("compute"),
    }
    cause = max(causes, key=lambda name: causes[name])
    return f"{ratio:.2f}x the time ({cause})"

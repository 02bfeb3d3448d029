"""Changes that make a config fit, least slowdown first."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from typing import Any

from dsconfig.cost import candidates
from dsconfig.cost.candidates import GRADIENT_CHECKPOINTING, Candidate, Series
from dsconfig.cost.estimate import Option
from dsconfig.cost.estimator import estimate_option, facts_in_force
from dsconfig.cost.fit import verdict_on
from dsconfig.cost.step_time import step_time
from dsconfig.facts.facts import Facts
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.runtimes.effective import Effective


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One edit of the config, or two (``parts``), with its effect.

    ``slowdown`` is the expected time per sample relative to the current config; ``edits`` are
    values by pointer, None for an entry to delete; ``facts`` are those of the changed run, except
    for its batch and recomputation.
    """

    parts: tuple[str, ...]
    edits: dict[str, Any]
    facts: Facts
    option: Option
    fits: bool
    saved_bytes: int
    slowdown: float

    @property
    def what(self) -> str:
        return ", ".join(self.parts)


Accept = Callable[[Change], Change | None]
"""Returns a change with all edits that the program requires; None if it refuses the change."""


def cheapest_changes(
    effective: Effective,
    facts: Facts,
    *,
    runtime: str | Runtime = "dsengine",
    count: int = 3,
    accept: Accept = lambda change: change,
) -> tuple[Change, ...]:
    """Return the ``count`` fastest changes that make the config fit; if none does, those that need
    least.

    Pairs of changes are offered only if neither change alone fits and is as fast; parallel degrees
    only if nothing else fits without offload. LoRA or QLoRA comes last, since it trains something
    else.
    """
    program = runtime_of(runtime)
    facts = facts_in_force(effective, _without_redundant_false(effective, facts), program)
    evaluator = _Evaluator(effective, facts, program, accept)
    run = (effective, facts, program)
    found = evaluator.evaluate(candidates.single(*run))
    if not any(map(_fits_on_device, found)):
        found += evaluator.smallest_fitting(candidates.degrees(*run))
    if sum(change.fits for change in found) < count:
        pairs = evaluator.evaluate(candidates.pairs(*run))
        if not any(map(_fits_on_device, (*found, *pairs))):
            pairs += evaluator.smallest_fitting(candidates.degrees_with_others(*run))
        alone = {change.what: change.slowdown for change in found if change.fits}
        found += [
            pair
            for pair in pairs
            if all(alone.get(part, inf) > pair.slowdown for part in pair.parts)
        ]
    fitting = sorted((change for change in found if change.fits), key=lambda it: it.slowdown)
    listed = [*fitting[:count], *evaluator.first_fitting(candidates.adapters(effective, facts))]
    if listed:
        return tuple(listed)
    rest = sorted(found, key=lambda change: change.option.device.needed_bytes)
    return tuple(islice(filter(None, map(accept, rest)), count))


def _fits_on_device(change: Change) -> bool:
    """Return whether a change fits without offload."""
    option = change.option
    return change.fits and option.offload_optimizer == option.offload_param == "none"


def _without_redundant_false(effective: Effective, facts: Facts) -> Facts:
    """Drop a ``gradient_checkpointing=False`` of TrainingArguments that has no effect: the remedy
    changes it.

    ``--recompute none`` is an explicit choice and is kept.
    """
    training = facts.training
    if training is None or effective.activation_checkpointing.enabled:
        return facts
    if training.arguments.get("gradient_checkpointing") is not False:
        return facts
    rest = {
        name: value for name, value in training.arguments.items() if name != GRADIENT_CHECKPOINTING
    }
    return replace(facts, training=replace(training, arguments=rest))


class _Evaluator:
    """Estimates changes against the current config. Those that fit are accepted by the program."""

    def __init__(
        self, effective: Effective, facts: Facts, runtime: Runtime, accept: Accept
    ) -> None:
        self._runtime, self._accept = runtime, accept
        self._peak = estimate_option(effective, facts, runtime=runtime).device.peak_bytes
        self._time = self._seconds(effective, facts)

    def _seconds(self, effective: Effective, facts: Facts) -> float:
        if effective.batch is None:
            return 1.0
        return step_time(effective, facts, runtime=self._runtime).seconds_per_sample

    def evaluate(self, every: Iterable[Series]) -> list[Change]:
        """Return the useful changes of each series, up to the first that does not fit."""
        found: list[Change] = []
        for series in every:
            for change in map(self._change, series):
                found += [change] if change is not None else []
                if change is None or not change.fits:
                    break
        return found

    def smallest_fitting(self, every: Iterable[Series]) -> list[Change]:
        """Return from each series of rising degrees the first that fits, else the last."""
        found: list[Change | None] = []
        for series in every:
            last = self._change(series[-1]) if series else None
            smaller = self.first_fitting(series[:-1]) if last is not None and last.fits else []
            found += smaller or [last]
        return [change for change in found if change is not None]

    def first_fitting(self, series: Iterable[Candidate]) -> list[Change]:
        """Return the first change that fits, or nothing."""
        changes = map(self._change, series)
        return list(islice((change for change in changes if change and change.fits), 1))

    def _change(self, candidate: Candidate) -> Change | None:
        """Return the change with its estimate; None if it neither fits nor saves memory, or if the
        program refuses it."""
        changed, facts = candidate.effective, candidate.facts
        option = estimate_option(changed, facts, runtime=self._runtime)
        saved = self._peak - option.device.peak_bytes
        fits = verdict_on(option, changed, facts).fits
        if saved <= 0 and not fits:
            return None
        change = Change(
            parts=candidate.parts,
            edits=candidate.edits,
            facts=facts,
            option=option,
            fits=fits,
            saved_bytes=saved,
            slowdown=self._seconds(changed, facts) / self._time,
        )
        return self._accept(change) if fits else change

"""The inverse questions: what is the most that fits, or the least that is needed?"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dsconfig.facts import Facts, TrainingFacts
from dsconfig.memory.answer import price
from dsconfig.memory.choices import (
    USUAL,
    Choice,
    choice_of,
    usual_config,
    with_micro_batch,
    with_recomputation,
)
from dsconfig.memory.estimate import Option
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.effective import Effective

MAXIMUM_GPUS = 65_536
SMALLEST_MODEL, LARGEST_MODEL = 10_000_000, 100_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """An answer with the choice that reaches it. ``value`` is None when nothing fits."""

    question: str
    value: int | None
    choice: Choice | None = None
    recompute: bool = False
    option: Option | None = None

    @property
    def how(self) -> str:
        if self.choice is None:
            return ""
        return self.choice.label + (", recomputing activations" if self.recompute else "")


def limits(
    facts: Facts, effective: Effective | None = None, *, runtime: str | Runtime = "dsengine"
) -> tuple[Limit, ...]:
    """Every inverse question the facts allow; the micro batch only for a known sequence length.

    With a config only its own choice is tried; else all usual ones, the fastest first that
    reaches the best value. Raises ValueError when the card's memory is unknown.
    """
    if facts.device is None or facts.device.memory_bytes is None:
        raise ValueError("--fit needs the card: give --device or --device-memory")
    ask = _Questions(facts, effective, runtime)
    found: list[Limit] = []
    if facts.world_size is not None and effective is None:
        found.append(ask.largest_model())
    if facts.model is not None:
        found.append(ask.fewest_gpus())
    if facts.model is not None and facts.world_size is not None:
        if facts.training is not None and facts.training.sequence_length is not None:
            found.append(ask.largest_micro_batch())
        found.append(ask.longest_sequence())
    return tuple(found)


class _Questions:
    def __init__(self, facts: Facts, effective: Effective | None, runtime: str | Runtime) -> None:
        self._facts, self._effective, self._runtime = facts, effective, runtime

    def largest_model(self) -> Limit:
        """In parameters, to 1 %; the shape is that of a Llama-like decoder of the size."""
        from dsconfig.facts import from_count

        def facts_for(size: int) -> Facts:
            return replace(self._facts, model=from_count.model(size))

        return self._most(
            "largest model (parameters)", SMALLEST_MODEL, LARGEST_MODEL, facts_for, precision=0.01
        )

    def fewest_gpus(self) -> Limit:
        per_node = max(1, (self._facts.world_size or 8) // (self._facts.nodes or 1))

        def facts_for(gpus: int) -> Facts:
            return replace(self._facts, world_size=gpus, nodes=max(1, -(-gpus // per_node)))

        degree = self._facts.tensor_parallel * self._facts.pipeline_parallel
        gpus = max(1, degree * self._facts.sequence_parallel)
        while gpus <= MAXIMUM_GPUS:
            fitting = self._first_fitting(facts_for(gpus))
            if fitting is not None:
                low = max(1, gpus // 2)
                return self._least(facts_for, low, gpus, degree)
            gpus *= 2
        return Limit(question="fewest GPUs", value=None)

    def largest_micro_batch(self) -> Limit:
        return self._most("largest micro batch", 1, 65_536, lambda _: self._facts, micro_batch=True)

    def longest_sequence(self) -> Limit:
        """In tokens, to a multiple of 128."""

        def facts_for(units: int) -> Facts:
            training = self._facts.training or TrainingFacts(micro_batch_size=1)
            return replace(self._facts, training=replace(training, sequence_length=units * 128))

        found = self._most("longest sequence (tokens)", 1, 131_072, facts_for)
        return found if found.value is None else replace(found, value=found.value * 128)

    def _least(self, facts_for: Callable[[int], Facts], low: int, high: int, step: int) -> Limit:
        while high - low > step:
            middle = (low + high) // 2 // step * step
            if middle > low and self._first_fitting(facts_for(middle)) is not None:
                high = middle
            else:
                low = max(middle, low + step)
        best = low if self._first_fitting(facts_for(low)) is not None else high
        fitting = self._first_fitting(facts_for(best))
        assert fitting is not None
        return Limit(question="fewest GPUs", value=best, **fitting)

    def _most(
        self,
        question: str,
        low: int,
        high: int,
        facts_for: Callable[[int], Facts],
        *,
        micro_batch: bool = False,
        precision: float = 0.0,
    ) -> Limit:
        def fitting(value: int) -> dict[str, Any] | None:
            return self._first_fitting(facts_for(value), value if micro_batch else None)

        best = fitting(low)
        if best is None:
            return Limit(question=question, value=None)
        while high - low > max(1, int(low * precision)):
            # Halve the ratio while the range is wide, the distance once it is narrow.
            middle = int((low * high) ** 0.5) if high > 4 * low else (low + high) // 2
            middle = min(max(middle, low + 1), high - 1)
            found = fitting(middle)
            if found is None:
                high = middle
            else:
                low, best = middle, found
        return Limit(question=question, value=low, **best)

    def _first_fitting(self, facts: Facts, micro_batch: int | None = None) -> dict[str, Any] | None:
        for choice, recompute, config in self._configs(facts, micro_batch):
            option = price(config, facts, runtime=self._runtime)
            if all(fit.fits for fit in option.fits) and _host_holds(option, facts):
                return {"choice": choice, "recompute": recompute, "option": option}
        return None

    def _configs(
        self, facts: Facts, micro_batch: int | None
    ) -> list[tuple[Choice, bool, Effective]]:
        """(choice, recomputes, config), fastest first."""
        if self._effective is not None:
            config = self._effective
            if micro_batch is not None:
                config = with_micro_batch(config, micro_batch)
            return [(choice_of(config), False, config)]
        plain = [(choice, usual_config(facts, choice, micro_batch=micro_batch)) for choice in USUAL]
        return [
            (choice, recompute, with_recomputation(config) if recompute else config)
            for choice, config in plain
            for recompute in (False, True)
        ]


def _host_holds(option: Option, facts: Facts) -> bool:
    """Main memory and disk are checked where they are known."""
    host = facts.host
    if host is None:
        return True
    if host.memory_bytes is not None and option.host.peak_bytes > host.memory_bytes:
        return False
    return host.nvme_bytes is None or option.nvme.bytes <= host.nvme_bytes

"""The inverse questions: the most that fits, or the least that is needed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from dsconfig.cost import degree_search, divisions, search, search_space
from dsconfig.cost.activations import Recompute
from dsconfig.cost.estimate import Option
from dsconfig.cost.search_space import Batches, Candidate, Space
from dsconfig.facts import Facts, TrainingFacts
from dsconfig.facts.naming import named
from dsconfig.lazy_imports import lazy_imports
from dsconfig.mesh import divisors
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.runtimes.capabilities import label_of
from dsconfig.runtimes.effective import Effective

with lazy_imports():
    from dsconfig.facts import parameter_count


MAXIMUM_GPUS = 65_536
FEWEST = "fewest GPUs"
MODEL = "largest model (parameters)"
WITHOUT_OFFLOAD = "largest model (parameters), without offload"
SMALLEST_MODEL, LARGEST_MODEL = 10_000_000, 100_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """An answer with the search result at the limit; ``value`` is None if nothing fits."""

    question: str
    value: int | None = None
    candidate: Candidate | None = None

    @property
    def effective(self) -> Effective | None:
        return self.candidate.effective if self.candidate else None

    @property
    def option(self) -> Option | None:
        return self.candidate.option if self.candidate else None

    @property
    def recompute(self) -> Recompute:
        return self.candidate.choice.recompute if self.candidate else Recompute.NONE

    @property
    def how(self) -> str:
        if self.candidate is None:
            return ""
        degrees = label_of(self.candidate.degrees)
        return f"{degrees}{self.candidate.choice.label}{_RECOMPUTE_LABELS[self.recompute]}"


_RECOMPUTE_LABELS = {
    Recompute.NONE: "",
    Recompute.SELECTIVE: ", recomputing selectively",
    Recompute.FULL: ", recomputing activations",
}


def limits(
    facts: Facts, effective: Effective | None = None, *, runtime: str | Runtime = "dsengine"
) -> tuple[Limit, ...]:
    """Return every inverse answer the facts allow; the micro batch only for a known sequence
    length.

    With a config only its own choice is tried; otherwise the answer uses what ``resolve`` and
    ``tune`` choose at the limit. Raises ValueError if the device memory is unknown.
    """
    if facts.device_bytes is None:
        raise ValueError(
            f"the device is unknown: specify {named('device')} or {named('device_memory')}"
        )
    questions = _Questions(facts, effective, runtime)
    found: list[Limit] = []
    model = facts.model
    # A model of another size would be trained in full, without the adapters of this one.
    trains_all = model is None or model.trainable == model.parameters
    if facts.world_size is not None and effective is None and trains_all:
        largest = questions.largest_model()
        host_is_known = facts.host is not None and facts.host.memory_bytes is not None
        if largest.candidate is not None and largest.candidate.choice.tiers and not host_is_known:
            found.append(questions.largest_model(without_offload=True))
        found.append(largest)
    if facts.model is not None:
        found.append(questions.fewest_gpus())
    if facts.model is not None and facts.world_size is not None:
        if facts.sequence_length is not None:
            found.append(questions.largest_micro_batch())
        found.append(questions.longest_sequence())
    return tuple(found)


class _Questions:
    def __init__(self, facts: Facts, effective: Effective | None, runtime: str | Runtime) -> None:
        self._facts, self._effective, self._runtime = facts, effective, runtime_of(runtime)
        self._closed: set[str] = set()
        """Settings of ``search_space`` that are not searched."""
        self._tried = [facts]
        """The facts with each combination of degrees; without a file all that are possible."""
        if effective is None:
            self._tried += divisions.possible(facts, self._runtime)

    def largest_model(self, *, without_offload: bool = False) -> Limit:
        """Return the parameter count, to 1 %, of the largest Llama-like decoder."""
        if without_offload:
            self._closed = {search_space.OPTIMIZER, search_space.PARAMETERS}
            found = replace(self.largest_model(), question=WITHOUT_OFFLOAD)
            self._closed = set()
            return found

        def facts_for(size: int, facts: Facts) -> Facts:
            return replace(facts, model=parameter_count.model(size))

        return self._most(MODEL, SMALLEST_MODEL, LARGEST_MODEL, facts_for, precision=0.01)

    def fewest_gpus(self) -> Limit:
        """Return the count in full groups of tensor, sequence and pipeline parallel ranks.

        With a global batch, only as many groups as divide it: ``tune`` rejects others. Divided
        further only if no number suffices.
        """
        answers = (self._fewest_gpus(facts) for facts in self._tried)
        return next((each for each in answers if each.value is not None), Limit(question=FEWEST))

    def _fewest_gpus(self, facts: Facts) -> Limit:
        question = FEWEST
        per_node = max(1, (facts.world_size or 8) // (facts.nodes or 1))
        group = facts.degrees.per_sample
        total = facts.training.global_batch_size if facts.training else None
        if total and self._effective is None:
            groups = divisors(total)
        else:
            groups = range(1, max(1, MAXIMUM_GPUS // group) + 1)

        def fitting(index: int) -> Space | None:
            gpus = groups[index] * group
            space = self._space(replace(facts, world_size=gpus, nodes=-(-gpus // per_node)))
            return space if search.any_fits(space) else None

        low, high, best = -1, 0, fitting(0)
        while best is None and high < len(groups) - 1:
            low, high = high, min(2 * high + 1, len(groups) - 1)
            best = fitting(high)
        if best is None:
            return Limit(question=question)
        while high - low > 1:
            middle = (low + high) // 2
            found = fitting(middle)
            low, high, best = (middle, high, best) if found is None else (low, middle, found)
        return Limit(
            question=question, value=groups[high] * group, candidate=search.fastest(best).chosen
        )

    def largest_micro_batch(self) -> Limit:
        return self._most(
            "largest micro batch",
            1,
            search_space.LARGEST_MICRO_BATCH,
            lambda _, facts: facts,
            micro_batch=True,
        )

    def longest_sequence(self) -> Limit:
        """Return the length in tokens, to a multiple of 128."""

        def facts_for(units: int, facts: Facts) -> Facts:
            training = facts.training or TrainingFacts(micro_batch_size=1)
            return replace(facts, training=replace(training, sequence_length=units * 128))

        found = self._most("longest sequence (tokens)", 1, 131_072, facts_for, all_degrees=True)
        return found if found.value is None else replace(found, value=found.value * 128)

    def _most(
        self,
        question: str,
        low: int,
        high: int,
        facts_for: Callable[[int, Facts], Facts],
        *,
        micro_batch: bool = False,
        precision: float = 0.0,
        all_degrees: bool = False,
    ) -> Limit:
        """Return the largest value that fits.

        ``all_degrees``: over all combinations of degrees, instead of the first with which any
        value fits.
        """

        def steps(value: int) -> int:
            return max(1, int(value * precision))

        most, best = None, None
        # Most divided first: the others then have to be better only once.
        for facts in reversed(self._tried) if all_degrees else self._tried:

            @cache
            def space(value: int, facts: Facts = facts) -> Space:
                return self._space(facts_for(value, facts), value if micro_batch else None)

            for choice in search.by_footprint(space(low)):
                # Continue from the best value found so far.
                start = low if most is None else most + steps(most)
                if start <= high and search.fits(space(start), choice):
                    most = _farthest(
                        lambda value, choice=choice, space=space: search.fits(space(value), choice),
                        start,
                        high,
                        steps,
                    )
                    best = space(most)
            if most is not None and not all_degrees:
                break
        if most is None or best is None:
            return Limit(question=question)
        return Limit(question=question, value=most, candidate=search.fastest(best).chosen)

    def _space(self, facts: Facts, micro_batch: int | None = None) -> Space:
        if self._effective is None:
            space = search_space.open_space(facts, self._runtime)
            space = replace(space, open=space.open - self._closed)
            space = degree_search.executed(space, self._runtime)
        else:
            batch = self._effective.batch
            space = Space(
                base=self._effective,
                facts=facts,
                runtime=self._runtime,
                batches=Batches(
                    (batch.micro_batch if batch else 1,), None, batch.accumulation if batch else 1
                ),
                open=frozenset(),
            )
        if micro_batch is not None:
            given = replace(space.batches, sizes=(micro_batch,), per_rank=None)
            space = replace(space, batches=given)
        return space


def _farthest(fits: Callable[[int], bool], low: int, high: int, steps: Callable[[int], int]) -> int:
    """Return the largest value that fits, to within ``steps``; ``low`` is known to fit."""
    while high - low > steps(high):
        # Halve the ratio while the range is wide, the distance once it is narrow.
        middle = int((low * high) ** 0.5) if high > 4 * low else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

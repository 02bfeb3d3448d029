"""The search for stage, tiers, recomputation, buckets and batch, as far as a file leaves them open.

[Note: the policy] Every arrangement of stage, tiers and recomputation is taken with the largest
micro batch that fits it, as it would be run, and the one that is fastest per sample is chosen.
Fitting with 5 % of every memory to spare comes before fitting at all. Who fixes one of the answers
and asks again hears the same rest: what is fastest of all is fastest of those that share a part
with it.
``resolve``, ``tune``, ``init``, ``--fit`` and the remedies of diagnostics ask here.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from math import inf
from typing import Any, cast

from dsconfig.cost import buckets
from dsconfig.cost.activations import Recompute, is_recomputation_asked
from dsconfig.cost.choices import (
    USUAL,
    Choice,
    can_select,
    choice_of,
    recomputing_selectively,
    usual_config,
    with_choice,
    with_micro_batch,
    with_recomputation,
)
from dsconfig.cost.estimate import Estimate, Option, TierMemory
from dsconfig.cost.estimator import estimate_if_fits, estimate_option, fits_on, inputs_of
from dsconfig.cost.step_time import StepTime, step_time
from dsconfig.facts.facts import Facts
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report.sizes import in_gib, size
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.runtimes.effective import Effective, Tier

with lazy_imports():
    from dsconfig.facts import catalogue


TO_SPARE = 0.05
"""Of each memory: the estimate's own error is of that size."""
LARGEST_MICRO_BATCH = 2**16
"""Nobody needs more samples in one pass; the search stops here."""
STAGE, OPTIMIZER, PARAMETERS = "stage", "offload_optimizer", "offload_param"
RECOMPUTE = "activation_checkpointing"
ARRANGEMENT = frozenset((STAGE, OPTIMIZER, PARAMETERS))
EVERYTHING = ARRANGEMENT | {RECOMPUTE} | buckets.KEYS - {buckets.SUB_GROUP}
"""What is open where there is no file."""


# --- whether it fits -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """``shortfall`` describes what does not fit; ``tight``: less than 5 % of one memory is left."""

    shortfall: str = ""
    tight: bool = False

    @property
    def fits(self) -> bool:
        return not self.shortfall

    @property
    def has_headroom(self) -> bool:
        return not self.shortfall and not self.tight


def verdict_on(option: Option, effective: Effective, facts: Facts) -> Verdict:
    """A priced config against the card, the main memory and the disk, as far as they are known.

    Tight where the pools of a card's streams together leave less than 5 % of it, too: they would
    be flushed in every step.
    """
    shortfalls = [
        f"{size(-fit.headroom_bytes)} too much for {fit.device}"
        for fit in option.fits
        if not fit.fits
    ]
    wants = [(option.device.visible_bytes, fit.memory_bytes) for fit in option.fits]
    host = facts.host
    shortfalls.append(_host_shortfall(option.host, facts))
    if host is not None and host.usable_bytes is not None:
        wants.append((option.host.peak_bytes, host.usable_bytes))
    shortfalls.append(_disk_shortfall(option.nvme, facts, effective))
    if host is not None and host.nvme_bytes is not None and option.nvme.bytes:
        wants.append((option.nvme.bytes, host.nvme_bytes))
    tight = any(wanted > there * (1 - TO_SPARE) for wanted, there in wants)
    return Verdict("; ".join(each for each in shortfalls if each), tight)


def host_or_disk_shortfall(host: TierMemory, nvme: TierMemory, facts: Facts) -> str:
    """What main memory or a disk of known size lacks, in words; empty where both suffice."""
    return _host_shortfall(host, facts) or _disk_shortfall(nvme, facts)


def _host_shortfall(host: TierMemory, facts: Facts) -> str:
    """Building the model included."""
    usable = facts.host.usable_bytes if facts.host else None
    if usable is None or host.peak_bytes <= usable:
        return ""
    building = " to build the model" if host.is_building_worst else ""
    needs = f"needs {size(host.peak_bytes, 0)} of main memory per node{building}"
    return f"{needs}, {in_gib(usable, 0)} are usable"


def _disk_shortfall(nvme: TierMemory, facts: Facts, effective: Effective | None = None) -> str:
    """What NVMe lacks, in words: a directory where ``effective`` is asked and names none, or room.
    Empty where it fits, or nobody knows its size.
    """
    if nvme.bytes and effective is not None and not _names_disk(effective, facts):
        return f"needs {size(nvme.bytes, 0)} of NVMe: give --nvme"
    there = facts.host.nvme_bytes if facts.host else None
    if there is None or nvme.bytes <= there:
        return ""
    return f"needs {size(nvme.bytes, 0)} of NVMe per node, {in_gib(there, 0)} are free"


def _names_disk(effective: Effective, facts: Facts) -> bool:
    """Disk is there where the config or the facts name a directory on it."""
    zero = effective.zero
    blocks = (zero.offload_optimizer, zero.offload_param)
    named = any(block is not None and block.nvme_path for block in blocks)
    return named or (facts.host is not None and facts.host.nvme_path is not None)


# --- what is open ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batches:
    """Micro batches in question, ascending, each with its accumulation."""

    sizes: Sequence[int]
    per_rank: int | None = None
    """Samples of one rank in one step, where the global batch is known."""
    steps: int = 1
    """Accumulation where it is not."""

    def accumulation(self, micro: int) -> int:
        return max(1, self.per_rank // micro) if self.per_rank else self.steps


def batches(
    ranks: int, *, total: int | None, micro: int | None, steps: int | None, searched: bool = True
) -> Batches:
    """Those that go with the members of the triple that are given.

    ``searched``: what is not given is asked for; else the whole share of a rank is one pass, as
    DeepSpeed takes a file that names the global batch alone.
    """
    per_rank = total // ranks if total and total >= ranks else None
    if micro is not None:
        return Batches((micro,), None if steps else per_rank, steps or 1)
    if per_rank is None:
        return Batches(range(1, LARGEST_MICRO_BATCH + 1), None, steps or 1)
    if steps is not None:
        return Batches((max(1, per_rank // steps),), None, steps)
    return Batches(divisors(per_rank) if searched else (per_rank,), per_rank)


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return small + [number // size for size in reversed(small) if size * size != number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One choice with its price and expected time; ``reason`` says why it lost, "" if it won.

    ``option`` is the price in the program that was asked about; the bytes are the most of all
    programs in which the config has to fit (decision 0401).
    """

    choice: Choice
    effective: Effective
    option: Option
    time: StepTime
    verdict: Verdict
    device_bytes: int
    host_bytes: int
    reason: str = ""

    @property
    def label(self) -> str:
        return f"{self.choice.label}, {self.run}"

    @property
    def run(self) -> str:
        """What goes with any stage: ``micro batch 4 x 2, recompute``, in two passes."""
        choice = self.choice
        again = "" if choice.recompute is Recompute.NONE else f", {_IN_WORDS[choice.recompute]}"
        passes = f" x {choice.accumulation}" if choice.accumulation > 1 else ""
        return f"micro batch {choice.micro_batch}{passes}{again}"


_IN_WORDS = {Recompute.SELECTIVE: "recompute selectively", Recompute.FULL: "recompute"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A config with what it leaves open, and the facts it is judged by."""

    base: Effective
    facts: Facts
    runtime: Runtime
    batches: Batches
    open: frozenset[str] = EVERYTHING
    priced: dict[Choice, Candidate] = field(default_factory=dict[Choice, Candidate])
    too_large: set[Choice] = field(default_factory=set[Choice])

    def arrangements(self) -> list[Choice]:
        """Stage, tiers and recomputation, what may be the quickest first; among equals the least
        sharded.
        """
        now = choice_of(self.base, self.facts)
        micro = self.batches.sizes[0]
        every = (Tier.DEVICE, Tier.HOST, Tier.NVME)
        found = [
            Choice(
                stage=stage,
                optimizer=optimizer,
                parameters=parameters,
                recompute=recompute,
                micro_batch=micro,
                accumulation=self.batches.accumulation(micro),
            )
            for stage in (range(4) if STAGE in self.open else (now.stage,))
            for optimizer in (every if OPTIMIZER in self.open else (now.optimizer,))
            for parameters in (every if PARAMETERS in self.open else (now.parameters,))
            for recompute in self._recomputations(now)
        ]
        if ARRANGEMENT & self.open:
            found = [each for each in found if each.works]
        return sorted(found, key=self.quickest) if len(found) > 1 else found

    def quickest(self, choice: Choice) -> float:
        """Seconds per sample that an arrangement stays above: at the largest batch in question,
        which hides what a step takes anyway, and as if its pipeline never stood idle.
        """
        micro = self.batches.sizes[-1]
        time = self.time(self.batched(choice, micro))
        return (time.seconds - time.bubble) / time.samples

    def _recomputations(self, now: Choice) -> tuple[Recompute, ...]:
        """What is open of none, selective and full."""
        if RECOMPUTE not in self.open or is_recomputation_asked(self.facts):
            return (now.recompute,)
        if can_select(self.facts):
            return (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
        return (Recompute.NONE, Recompute.FULL)

    def time(self, choice: Choice) -> StepTime:
        """The expected time of one step."""
        is_deepspeed = self.runtime.runs_deepspeed
        return step_time(self.config(choice), self.facts_of(choice), is_deepspeed=is_deepspeed)

    def facts_of(self, choice: Choice) -> Facts:
        """The facts of the run with a choice in place: a file recomputes all blocks or none."""
        selects = choice.recompute is Recompute.SELECTIVE and RECOMPUTE in self.open
        return recomputing_selectively(self.facts) if selects else self.facts

    def config(self, choice: Choice) -> Effective:
        """The config with a choice in place."""
        block = cast("dict[str, Any] | None", self.base.config.get("zero_optimization"))
        written = block if isinstance(block, dict) else {} if self.base.config else None
        zero = self.base.zero
        if ARRANGEMENT & self.open:
            zero = with_choice(zero, choice, self.facts)
        zero = buckets.with_buckets(zero, self.facts, self.open, written)
        made = replace(self.base, zero=zero)
        if RECOMPUTE in self.open:
            made = with_recomputation(made, choice.recompute is Recompute.FULL)
        ranks = self.facts.data_parallel or 1
        return with_micro_batch(made, choice.micro_batch, choice.accumulation, ranks)

    def candidate(self, choice: Choice) -> Candidate:
        """A choice with its price; once one program does not hold it, no other is asked."""
        if choice not in self.priced:
            effective, facts = self.config(choice), self.facts_of(choice)
            prices = (
                estimate_option(effective, facts, runtime=each) for each in programs(self.runtime)
            )
            self.priced[choice] = self._candidate(choice, effective, prices)
        return self.priced[choice]

    def fitting(self, choice: Choice) -> Candidate | None:
        """The same if it fits, else None: a price that is asked for no more than that ends at the
        first memory that overflows.
        """
        if choice not in self.priced and choice not in self.too_large:
            effective, facts = self.config(choice), self.facts_of(choice)
            options = list[Option]()
            for program in programs(self.runtime):
                option = estimate_if_fits(
                    effective,
                    facts,
                    runtime=program,
                    below=lambda host, nvme: (
                        not (
                            _host_shortfall(host, facts) or _disk_shortfall(nvme, facts, effective)
                        )
                    ),
                )
                if option is None:
                    self.too_large.add(choice)
                    return None
                options.append(option)
            self.priced[choice] = self._candidate(choice, effective, options)
        found = self.priced.get(choice)
        return found if found is not None and found.verdict.fits else None

    def _candidate(
        self, choice: Choice, effective: Effective, prices: Iterable[Option]
    ) -> Candidate:
        facts, options, verdict = self.facts_of(choice), list[Option](), Verdict()
        for option in prices:
            options.append(option)
            judged = verdict_on(option, effective, facts)
            verdict = Verdict(judged.shortfall, verdict.tight or judged.tight)
            if not verdict.fits:
                break
        zero = effective.zero
        sizes = {name: getattr(zero, name) for name in _BUCKET_FIELDS}
        return Candidate(
            choice=replace(choice, buckets=sizes),
            effective=effective,
            option=options[0],
            time=self.time(choice),
            verdict=verdict,
            device_bytes=max(option.device.needed_bytes for option in options),
            host_bytes=max(option.host.peak_bytes for option in options),
        )

    def with_batch(self, choice: Choice, micro: int) -> Candidate:
        """The same arrangement with another micro batch."""
        return self.candidate(self.batched(choice, micro))

    def batched(self, choice: Choice, micro: int) -> Choice:
        steps = self.batches.accumulation(micro)
        return replace(choice, micro_batch=micro, accumulation=steps)


_BUCKET_FIELDS = (
    "overlap_comm",
    "reduce_bucket_size",
    "allgather_bucket_size",
    "prefetch_bucket_size",
    "param_persistence_threshold",
)


def programs(runtime: Runtime) -> tuple[Runtime, ...]:
    """Those that a config for ``runtime`` has to fit in, itself first, at its own release."""
    version = runtime.version
    others = (runtime_of(name, version) for name in runtime.must_fit_on)
    apart = (each for each in others if each.runs_deepspeed != runtime.runs_deepspeed)
    return (runtime, *apart)


# --- the search ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What the policy chooses, batch and all, and what does not fit with the smallest batch though
    it would be faster.
    """

    chosen: Candidate | None
    skipped: Sequence[Choice] = ()


def fastest(space: Space) -> SearchResult:
    """The choice of the policy, and those skipped before it."""
    best, fitting, skipped, tight = inf, list[Candidate](), list[Choice](), list[Choice]()
    for choice in space.arrangements():
        if space.quickest(choice) > AS_FAST * best:
            break
        small = space.fitting(choice)
        if small is None or small.verdict.tight:
            skipped.append(choice)
            tight += [] if small is None else [choice]
        elif _may_reach(space, choice, AS_FAST * best):
            fitting.append(_largest(space, choice, spare=True) or small)
            best = min(best, fitting[-1].time.seconds_per_sample)
    if not fitting:
        fitting = [_largest(space, each, spare=False) or space.candidate(each) for each in tight]
        skipped = [each for each in skipped if each not in tight]
    return SearchResult(_least_sharded(space, fitting) if fitting else None, skipped)


def _may_reach(space: Space, choice: Choice, seconds: float) -> bool:
    """Whether the smallest batch that takes no more per sample fits: asked before the largest one
    is searched for.
    """
    sizes = space.batches.sizes

    def serves(micro: int) -> bool:
        return space.time(space.batched(choice, micro)).seconds_per_sample <= seconds

    place = bisect_left(sizes, True, key=serves)
    if place == len(sizes):
        return False
    found = space.fitting(space.batched(choice, sizes[place]))
    return found is not None and found.verdict.has_headroom


AS_FAST = 1.005
"""Times a sample's time that are no difference: published runs of one config differ by more."""


def _least_sharded(space: Space, fitting: Sequence[Candidate]) -> Candidate:
    """Of the stages that are as fast as the fastest, the lowest, unless another has more than 5 %
    of the card less: below that the estimate tells no difference.
    """
    fastest = min(fitting, key=lambda each: each.time.seconds_per_sample)
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
    """However much of the communication is hidden: stage 3 sends more, and some runs show it."""
    pairs = ((mine.low, other.low), (mine.seconds, other.seconds), (mine.high, other.high))
    return all(one <= AS_FAST * another for one, another in pairs)


def by_footprint(space: Space) -> list[Choice]:
    """Every arrangement, what is likely to fit first: computing all blocks again holds less, and
    what is slow is so for the sake of room.
    """
    found = space.arrangements()[::-1]
    return sorted(found, key=lambda each: each.recompute is not Recompute.FULL)


def fits(space: Space, choice: Choice) -> bool:
    """Whether an arrangement fits with the smallest batch."""
    return space.fitting(space.batched(choice, space.batches.sizes[0])) is not None


def any_fits(space: Space) -> bool:
    """Whether anything fits."""
    return any(fits(space, choice) for choice in by_footprint(space))


def with_largest_batch(space: Space, choice: Choice) -> Candidate | None:
    """An arrangement with the largest micro batch that fits; None where not even one does."""
    return _largest(space, choice, spare=True) or _largest(space, choice, spare=False)


def _largest(space: Space, choice: Choice, *, spare: bool) -> Candidate | None:
    """By interpolation, since bytes grow nearly in proportion; every third try after the first
    two bisects."""
    sizes, tried = space.batches.sizes, list[Candidate]()

    def serves(place: int) -> bool:
        tried.append(space.with_batch(choice, sizes[place]))
        return tried[-1].verdict.has_headroom if spare else tried[-1].verdict.fits

    # A whole share in one pass has no sums of earlier passes beside it.
    if len(sizes) < LARGEST_MICRO_BATCH and serves(len(sizes) - 1):
        return tried[-1]
    low, high = 0, len(sizes)  # ``low`` of the sizes serve, from ``high`` on none does
    for attempt in count():
        if low >= high:
            return space.with_batch(choice, sizes[low - 1]) if low else None
        place = min(attempt, 1) if attempt < 2 else _expected(space, tried, spare)
        if attempt % 3 == 1 and attempt > 1:
            place = (low + high) // 2
        place = min(max(place, low), high - 1)
        low, high = (place + 1, high) if serves(place) else (low, place)


def _expected(space: Space, tried: list[Candidate], spare: bool) -> int:
    """The place of the size at which the card would be full, by the last two that were priced."""
    memory = space.facts.device_bytes
    one, other = sorted(tried[-2:], key=lambda each: each.choice.micro_batch)
    apart = other.choice.micro_batch - one.choice.micro_batch
    grown = other.device_bytes - one.device_bytes
    if memory is None or grown <= 0:
        return len(space.batches.sizes)
    room = memory * (1 - TO_SPARE if spare else 1) - one.device_bytes
    micro = one.choice.micro_batch + room * apart / grown
    return bisect_right(space.batches.sizes, micro) - 1


def open_space(
    facts: Facts, runtime: str | Runtime = "dsengine", fixed: Mapping[str, Any] | None = None
) -> Space:
    """Everything open but what the facts say of batch and recomputation, and what is ``fixed``:
    values of ARRANGEMENT, by name.
    """
    training, fixed = facts.training, fixed or {}
    given = Choice(
        stage=fixed.get(STAGE, 0),
        optimizer=fixed.get(OPTIMIZER, Tier.DEVICE),
        parameters=fixed.get(PARAMETERS, Tier.DEVICE),
    )
    return Space(
        base=usual_config(facts, given),
        facts=facts,
        runtime=runtime_of(runtime),
        batches=batches(
            facts.data_parallel or 1,
            total=training.global_batch_size if training else None,
            micro=training.micro_batch_size if training else None,
            steps=training.gradient_accumulation_steps if training else None,
        ),
        open=EVERYTHING - fixed.keys(),
    )


def tune(
    facts: Facts,
    *,
    runtime: str | Runtime = "dsengine",
    fixed: Mapping[str, Any] | None = None,
) -> tuple[Candidate, ...]:
    """Every arrangement with its largest batch: what the policy chooses, then the others in its
    order, then what does not fit.

    Raises ValueError when model, number of devices or the card's memory is unknown.
    """
    if facts.outline is not None:
        raise ValueError(facts.why_no_model)
    if facts.model is None or facts.world_size is None:
        raise ValueError("tune needs the model and the devices: give --model and --gpus")
    if facts.device_bytes is None:
        raise ValueError("tune needs the card: give --device or --device-memory")
    ranks, total = facts.data_parallel or 1, facts.training and facts.training.global_batch_size
    if total and total % ranks:
        raise ValueError(f"--global-batch {total} is not a multiple of {ranks} ranks")
    space = open_space(facts, runtime, fixed)
    best = fastest(space).chosen
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
    fitting.sort(key=lambda each: (bool(each.reason), each.time.seconds_per_sample))
    out.sort(key=lambda each: each.option.device.needed_bytes)
    return (*fitting, *out)


def _is_pointless(space: Space, choice: Choice, large: Candidate | None) -> bool:
    """Selective recomputation that makes no room for a larger batch, or not for any."""
    if choice.recompute is not Recompute.SELECTIVE or is_recomputation_asked(space.facts):
        return False
    plain = with_largest_batch(space, replace(choice, recompute=Recompute.NONE))
    if large is None or plain is None:
        return large is None
    return plain.verdict.has_headroom and plain.choice.micro_batch >= large.choice.micro_batch


def _why_not_chosen(candidate: Candidate, best: Candidate) -> str:
    """Why it is not the choice, by what a sample takes in both."""
    if candidate.verdict.tight and not best.verdict.tight:
        return "fits with less than 5 % to spare"
    mine, others = candidate.time, best.time
    ratio = mine.seconds_per_sample / others.seconds_per_sample
    if ratio < AS_FAST:
        more = candidate.device_bytes - best.device_bytes
        if more > 0:
            return f"as fast, {size(more)} more"
        return "as fast, but more sharded" if more < 0 else "the same, but more sharded"
    again = candidate.choice.recompute is not best.choice.recompute

    def longer(part: str) -> float:
        return getattr(mine, part) / mine.samples - getattr(others, part) / others.samples

    causes = {
        "offload": longer("offload"),
        "communication": longer("communication"),
        "recomputation" if again else "update": longer("compute"),
    }
    cause = max(causes, key=lambda name: causes[name])
    return f"{ratio:.2f}x the time: {cause}"


# --- the table of usual choices --------------------------------------------------------------


def table(facts: Facts, *, runtime: str | Runtime = "dsengine") -> Estimate:
    """Every usual choice priced, each judged against the card given, or all known cards.

    Raises ValueError when the facts name no model or no number of devices.
    """
    options = [
        estimate_option(usual_config(facts, choice), facts, runtime=runtime) for choice in USUAL
    ]
    inputs = inputs_of(usual_config(facts, USUAL[-1]), facts, runtime)
    if facts.device is None:
        cards = list(known_devices(str(inputs["precision"])))
        options = [replace(each, fits=fits_on(cards, each.device)) for each in options]
    return Estimate(options=tuple(options), inputs=inputs)


@lru_cache(maxsize=4)
def known_devices(precision: str = "") -> tuple[tuple[str, int], ...]:
    """(name, usable bytes) of those of the catalogue that compute in it, smallest first."""
    cards = [
        (card["name"], card["memory_bytes_usable"])
        for card in catalogue.gpus()
        if card["bf16"] or precision != "bf16"
    ]
    return tuple(sorted(cards, key=lambda card: card[1]))

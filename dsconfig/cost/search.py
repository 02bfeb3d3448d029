"""The search for stage, tiers, recomputation, buckets and batch, as far as a file leaves them open.

[Note: the policy] Every arrangement of stage, tiers and recomputation is evaluated with the largest
micro batch that fits, and the fastest per sample is chosen. Candidates that leave 5 % of every
memory free come before those that only just fit. Fixing one of the answers does not change the
others: the overall fastest is also the fastest of those that share a setting with it. ``resolve``,
``tune``, ``init``, ``--fit`` and the remedies of diagnostics use this search.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from math import inf
from typing import Any, cast

from dsconfig.cost import buckets
from dsconfig.cost.activations import Recompute, sets_recomputation
from dsconfig.cost.choices import (
    USUAL,
    Choice,
    can_select,
    choice_of,
    config_of,
    recomputing_selectively,
    supports_stage,
    usual_config,
    with_choice,
    with_micro_batch,
    with_recomputation,
)
from dsconfig.cost.estimate import Estimate, Option, TierMemory
from dsconfig.cost.estimator import estimate_if_fits, estimate_option, fits_on, inputs_of
from dsconfig.cost.step_time import StepTime, step_time
from dsconfig.cost.workload import require_facts
from dsconfig.facts.facts import Facts
from dsconfig.facts.inputs import ArgumentError
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report.sizes import in_gib, size
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.runtimes.effective import Effective, Tier

with lazy_imports():
    from dsconfig.facts import catalogue


TO_SPARE = 0.05
"""Fraction of each memory to keep free: the error of the estimate is of that size."""
LARGEST_MICRO_BATCH = 2**16
"""Upper bound of the search."""
STAGE, OPTIMIZER, PARAMETERS = "stage", "offload_optimizer", "offload_param"
RECOMPUTE = "activation_checkpointing"
ARRANGEMENT = frozenset((STAGE, OPTIMIZER, PARAMETERS))
EVERYTHING = ARRANGEMENT | {RECOMPUTE} | buckets.KEYS - {buckets.SUB_GROUP}
"""What is open without a file."""


# --- verdict -------------------------------------------------------------------------


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
    """Compare an estimate with device, host memory and disk, as far as they are known.

    Also tight if the pools of all CUDA streams together leave less than 5 % of the device: they
    would be flushed in every step.
    """
    shortfalls = [
        f"exceeds {fit.device} by {size(-fit.headroom_bytes)}"
        for fit in option.fits
        if not fit.fits
    ]
    required = [(option.device.visible_bytes, fit.memory_bytes) for fit in option.fits]
    host = facts.host
    shortfalls.append(_host_shortfall(option.host, facts))
    if host is not None and host.usable_bytes is not None:
        required.append((option.host.peak_bytes, host.usable_bytes))
    shortfalls.append(_disk_shortfall(option.nvme, facts, effective))
    if host is not None and host.nvme_bytes is not None and option.nvme.bytes:
        required.append((option.nvme.bytes, host.nvme_bytes))
    tight = any(needed > limit * (1 - TO_SPARE) for needed, limit in required)
    return Verdict("; ".join(each for each in shortfalls if each), tight)


def host_or_disk_shortfall(host: TierMemory, nvme: TierMemory, facts: Facts) -> str:
    """Describe by how much host memory or a disk of known size is exceeded; empty
    if both suffice."""
    return _host_shortfall(host, facts) or _disk_shortfall(nvme, facts)


def _host_shortfall(host: TierMemory, facts: Facts) -> str:
    """Describe the host memory shortfall, including building the model."""
    usable = facts.host.usable_bytes if facts.host else None
    if usable is None or host.peak_bytes <= usable:
        return ""
    building = " to build the model" if host.is_building_worst else ""
    needs = f"needs {size(host.peak_bytes, 0)} of host memory per node{building}"
    return f"{needs}, {in_gib(usable, 0)} available"


def _disk_shortfall(nvme: TierMemory, facts: Facts, effective: Effective | None = None) -> str:
    """Describe the NVMe shortfall: no directory (if ``effective`` is given) or too little space.

    Empty if it fits or the size is unknown.
    """
    if nvme.bytes and effective is not None and not _names_disk(effective, facts):
        return f"needs {size(nvme.bytes, 0)} of NVMe: specify --nvme"
    free = facts.host.nvme_bytes if facts.host else None
    if free is None or nvme.bytes <= free:
        return ""
    return f"needs {size(nvme.bytes, 0)} of NVMe per node, {in_gib(free, 0)} free"


def _names_disk(effective: Effective, facts: Facts) -> bool:
    """Return whether the config or the facts name an NVMe directory."""
    zero = effective.zero
    blocks = (zero.offload_optimizer, zero.offload_param)
    named = any(block is not None and block.nvme_path for block in blocks)
    return named or (facts.host is not None and facts.host.nvme_path is not None)


# --- open settings ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batches:
    """Micro batches to try, ascending, each with its accumulation."""

    sizes: Sequence[int]
    per_rank: int | None = None
    """Samples of one rank in one step, if the global batch is known."""
    steps: int = 1
    """Accumulation if it is not."""

    def accumulation(self, micro: int) -> int:
        return max(1, self.per_rank // micro) if self.per_rank else self.steps


def batches(
    ranks: int, *, total: int | None, micro: int | None, steps: int | None, searched: bool = True
) -> Batches:
    """Return the batches compatible with the given members of the triple.

    ``searched``: try all divisors; otherwise one micro step takes a rank's full share, as DeepSpeed
    does for a file that sets only the global batch.
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
    """Return all divisors, ascending."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return small + [number // size for size in reversed(small) if size * size != number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One choice with its estimate and expected time; ``reason`` explains why it was not chosen.

    ``option`` is the estimate for the target program; the byte counts are the maximum over all
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

    def __repr__(self) -> str:
        result = self.reason or f"{size(self.device_bytes)} per GPU, {self.time.seconds:.3g} s/step"
        return f"<Candidate: {self.label}: {result}>"

    @property
    def label(self) -> str:
        return f"{self.choice.label}, {self.run}"

    @property
    def config(self) -> dict[str, Any]:
        """The config of this candidate, ready for JSON."""
        return config_of(self.effective)

    @property
    def run(self) -> str:
        """Return the batch and recomputation: ``micro batch 4 x 2, recompute``."""
        choice = self.choice
        recompute = _RECOMPUTE_LABELS[choice.recompute]
        steps = f" x {choice.accumulation}" if choice.accumulation > 1 else ""
        return f"micro batch {choice.micro_batch}{steps}{recompute}"


_RECOMPUTE_LABELS = {
    Recompute.NONE: "",
    Recompute.SELECTIVE: ", recompute selectively",
    Recompute.FULL: ", recompute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A config with its open settings, and the facts it is evaluated against."""

    base: Effective
    facts: Facts
    runtime: Runtime
    batches: Batches
    open: frozenset[str] = EVERYTHING
    selective: bool = True
    """False if the script of the run is not for dsengine."""
    priced: dict[Choice, Candidate] = field(default_factory=dict[Choice, Candidate])
    too_large: set[Choice] = field(default_factory=set[Choice])

    def arrangements(self) -> list[Choice]:
        """Return stage, tiers and recomputation, potentially fastest first; among equals least
        sharded first."""
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
            found = [
                each for each in found if each.works and supports_stage(self.facts, each.stage)
            ]
        return sorted(found, key=self.quickest) if len(found) > 1 else found

    def quickest(self, choice: Choice) -> float:
        """Return a lower bound of seconds per sample: at the largest batch and without a pipeline
        bubble."""
        micro = self.batches.sizes[-1]
        time = self.time(self.batched(choice, micro))
        return (time.seconds - time.bubble) / time.samples

    def _recomputations(self, now: Choice) -> tuple[Recompute, ...]:
        """Return the open choices among none, selective and full."""
        if RECOMPUTE not in self.open or sets_recomputation(self.facts):
            return (now.recompute,)
        if self.selective and can_select(self.facts, self.runtime):
            return (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
        return (Recompute.NONE, Recompute.FULL)

    def time(self, choice: Choice) -> StepTime:
        """Return the expected time of one step."""
        is_deepspeed = self.runtime.runs_deepspeed
        return step_time(self.config(choice), self.facts_of(choice), is_deepspeed=is_deepspeed)

    def facts_of(self, choice: Choice) -> Facts:
        """Return the facts with a choice applied: a file recomputes all blocks or none."""
        selects = choice.recompute is Recompute.SELECTIVE and RECOMPUTE in self.open
        return recomputing_selectively(self.facts) if selects else self.facts

    def config(self, choice: Choice) -> Effective:
        """Return the config with a choice applied."""
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
        """Return a choice with its estimate; stops at the first program it does not fit."""
        if choice not in self.priced:
            effective, facts = self.config(choice), self.facts_of(choice)
            prices = (
                estimate_option(effective, facts, runtime=each) for each in programs(self.runtime)
            )
            self.priced[choice] = self._candidate(choice, effective, prices)
        return self.priced[choice]

    def fitting(self, choice: Choice) -> Candidate | None:
        """Return the candidate if it fits, else None; the estimate stops at the first memory that
        overflows."""
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
            current = verdict_on(option, effective, facts)
            verdict = Verdict(current.shortfall, verdict.tight or current.tight)
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
        """Return the candidate for the same arrangement with another micro batch."""
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
    """Return the programs that a config for ``runtime`` has to fit in, itself first, at its own
    release."""
    version = runtime.version
    others = (runtime_of(name, version) for name in runtime.must_fit_on)
    apart = (each for each in others if each.runs_deepspeed != runtime.runs_deepspeed)
    return (runtime, *apart)


# --- the search ------------------------------------------------------------------------------


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
            fitting.append(_largest(space, choice, spare=True) or small)
            best = min(best, fitting[-1].time.seconds_per_sample)
    if not fitting:
        fitting = [_largest(space, each, spare=False) or space.candidate(each) for each in tight]
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
        if choice.works and supports_stage(space.facts, choice.stage)
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
    """Return an arrangement with the largest micro batch that fits; None if none does."""
    return _largest(space, choice, spare=True) or _largest(space, choice, spare=False)


def _largest(space: Space, choice: Choice, *, spare: bool) -> Candidate | None:
    """Search by interpolation, since bytes grow nearly in proportion; every third try bisects."""
    sizes, tried = space.batches.sizes, list[Candidate]()

    def serves(place: int) -> bool:
        tried.append(space.with_batch(choice, sizes[place]))
        return tried[-1].verdict.has_headroom if spare else tried[-1].verdict.fits

    # A full share in one micro step needs no accumulated gradients.
    if len(sizes) < LARGEST_MICRO_BATCH and serves(len(sizes) - 1):
        return tried[-1]
    low, high = 0, len(sizes)  # the first ``low`` sizes fit, none from ``high`` on
    for attempt in count():
        if low >= high:
            return space.with_batch(choice, sizes[low - 1]) if low else None
        place = min(attempt, 1) if attempt < 2 else _expected(space, tried, spare)
        if attempt % 3 == 1 and attempt > 1:
            place = (low + high) // 2
        place = min(max(place, low), high - 1)
        low, high = (place + 1, high) if serves(place) else (low, place)


def _expected(space: Space, tried: list[Candidate], spare: bool) -> int:
    """Return the index of the size that fills the device, extrapolated from the last two
    estimates."""
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
    facts: Facts,
    runtime: str | Runtime = "dsengine",
    fixed: Mapping[str, Any] | None = None,
    *,
    selective: bool = True,
) -> Space:
    """Return a space with everything open except batch and recomputation set in the facts, and
    ``fixed`` values of ARRANGEMENT by name.

    ``selective``: False if the script that runs the config is not for dsengine.
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
        selective=selective,
    )


def tune(
    facts: Facts,
    *,
    runtime: str | Runtime = "dsengine",
    fixed: Mapping[str, Any] | None = None,
) -> tuple[Candidate, ...]:
    """Return every arrangement with its largest batch: the chosen one, the others by speed, then
    those that do not fit.

    Raises ValueError if the model, the number of devices or the device memory is unknown.
    """
    require_facts(facts, device=True)
    ranks, total = facts.data_parallel or 1, facts.training and facts.training.global_batch_size
    if total and total % ranks:
        raise ArgumentError(f"global_batch=: {total} is not a multiple of {ranks} ranks")
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
    """Estimate every usual choice against the given device, or all known devices.

    Raises ValueError if the model or the number of devices is unknown.
    """
    choices = [choice for choice in USUAL if supports_stage(facts, choice.stage)]
    options = [
        estimate_option(usual_config(facts, choice), facts, runtime=runtime) for choice in choices
    ]
    inputs = inputs_of(usual_config(facts, USUAL[-1]), facts, runtime)
    if facts.device is None:
        devices = list(known_devices(str(inputs["precision"])))
        options = [replace(each, fits=fits_on(devices, each.device)) for each in options]
    return Estimate(options=tuple(options), inputs=inputs)


@lru_cache(maxsize=4)
def known_devices(precision: str = "") -> tuple[tuple[str, int], ...]:
    """Return (name, usable bytes) of desktop and server GPUs with the precision, smallest first."""
    devices = [
        (gpu["name"], gpu["memory_bytes_usable"])
        for gpu in catalogue.gpus()
        if (gpu["bf16"] or precision != "bf16") and "Laptop" not in gpu["name"]
    ]
    return tuple(sorted(devices, key=lambda device: device[1]))

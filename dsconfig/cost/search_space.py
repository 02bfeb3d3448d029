"""The settings that a file leaves open, and the candidates made of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from dsconfig.cost import buckets
from dsconfig.cost.activations import Recompute, sets_recomputation
from dsconfig.cost.choices import (
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
from dsconfig.cost.estimate import Option
from dsconfig.cost.estimator import estimate_if_fits, estimate_option
from dsconfig.cost.fit import Verdict, host_or_disk_shortfall, verdict_on
from dsconfig.cost.master_weights import specified
from dsconfig.cost.step_time import StepTime, step_time
from dsconfig.facts.facts import Facts
from dsconfig.mesh import UNDIVIDED, Degrees, divisors
from dsconfig.report.sizes import size
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.runtimes.capabilities import keys_in, label_of
from dsconfig.runtimes.effective import Effective, Tier
from dsconfig.source.pointer import copied, split

LARGEST_MICRO_BATCH = 2**16
"""Upper bound of the search."""
STAGE, OPTIMIZER, PARAMETERS = "stage", "offload_optimizer", "offload_param"
RECOMPUTE = "activation_checkpointing"
ARRANGEMENT = frozenset((STAGE, OPTIMIZER, PARAMETERS))
EVERYTHING = ARRANGEMENT | {RECOMPUTE} | buckets.KEYS - {buckets.SUB_GROUP}
"""What is open without a file."""


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
    degrees: Degrees = UNDIVIDED
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How the target program executes the degrees: keys of the config, and what is set elsewhere,
    by pointer."""
    reason: str = ""

    def __repr__(self) -> str:
        result = self.reason or f"{size(self.device_bytes)} per GPU, {self.time.seconds:.3g} s/step"
        return f"<Candidate: {self.label}: {result}>"

    @property
    def label(self) -> str:
        return f"{label_of(self.degrees)}{self.choice.label}, {self.run}"

    @property
    def config(self) -> dict[str, Any]:
        """The config of this candidate, ready for JSON."""
        return with_settings(config_of(self.effective), self.settings)

    @property
    def run(self) -> str:
        """Return the batch and recomputation: ``micro batch 4 x 2, recompute``."""
        choice = self.choice
        recompute = _RECOMPUTE_LABELS[choice.recompute]
        steps = f" x {choice.accumulation}" if choice.accumulation > 1 else ""
        return f"micro batch {choice.micro_batch}{steps}{recompute}"


def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with the settings, by pointer, that belong in it."""
    made = copied(config)
    for pointer, value in keys_in(settings).items():
        *blocks, name = split(pointer)
        place = made
        for block in blocks:
            place = place.setdefault(block, {})
        place[name] = value
    return made


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
    stages: Sequence[int] = range(4)
    """ZeRO stages at which the target program executes the degrees of the facts."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """How it executes them, by pointer."""
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
                each
                for each in found
                if each.works
                and each.stage in self.stages
                and supports_stage(self.facts, each.stage)
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
        return step_time(self.config(choice), self.facts_of(choice), runtime=self.runtime)

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

    @property
    def _programs(self) -> tuple[Runtime, ...]:
        """Return the programs to fit in: only the target if no other has these master weights."""
        narrow = specified(self.facts) in ("none", "bf16")
        return (self.runtime,) if narrow else programs(self.runtime)

    def candidate(self, choice: Choice) -> Candidate:
        """Return a choice with its estimate; stops at the first program it does not fit."""
        if choice not in self.priced:
            effective, facts = self.config(choice), self.facts_of(choice)
            prices = (estimate_option(effective, facts, runtime=each) for each in self._programs)
            self.priced[choice] = self._candidate(choice, effective, prices)
        return self.priced[choice]

    def fitting(self, choice: Choice) -> Candidate | None:
        """Return the candidate if it fits, else None; the estimate stops at the first memory that
        overflows."""
        if choice not in self.priced and choice not in self.too_large:
            effective, facts = self.config(choice), self.facts_of(choice)
            options = list[Option]()
            for program in self._programs:
                option = estimate_if_fits(
                    effective,
                    facts,
                    runtime=program,
                    below=lambda host, nvme: (
                        not host_or_disk_shortfall(host, nvme, facts, effective)
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
            degrees=facts.degrees,
            settings=self.settings,
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

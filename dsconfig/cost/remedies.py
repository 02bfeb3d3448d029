"""Changes that make a config fit, least slowdown first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from dsconfig.batch import STEPS
from dsconfig.cost.activations import Recompute, recompute_of
from dsconfig.cost.choices import (
    RECOMPUTED,
    USUAL,
    can_select,
    choice_edits,
    offload_label,
    recomputing_selectively,
    supports_stage,
    with_choice,
    with_micro_batch,
    with_recomputation,
)
from dsconfig.cost.divisions import described, possible
from dsconfig.cost.estimate import Option
from dsconfig.cost.estimator import estimate_option, facts_in_force
from dsconfig.cost.fit import verdict_on
from dsconfig.cost.step_time import step_time
from dsconfig.facts.adapters import with_adapters
from dsconfig.facts.base_weights import BaseWeights
from dsconfig.facts.facts import Facts
from dsconfig.mesh import UNDIVIDED, divisors
from dsconfig.runtimes.base import (
    BASE_WEIGHTS,
    LORA_RANK,
    RECOMPUTATION,
    SELECTIVE_RECOMPUTATION,
    Runtime,
    runtime_of,
)
from dsconfig.runtimes.capabilities import GATHERED_ON_SAVE, settings_of, stages_under
from dsconfig.runtimes.effective import TIER_NAMES, Effective, Tier, Zero
from dsconfig.schema import paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One edit of the config, or two (``parts``), with its effect.

    ``slowdown`` is the expected time per sample relative to the current config; ``edits`` are
    values by pointer.
    """

    parts: tuple[str, ...]
    edits: dict[str, Any]
    option: Option
    fits: bool
    saved_bytes: int
    slowdown: float

    @property
    def what(self) -> str:
        return ", ".join(self.parts)


def cheapest_changes(
    effective: Effective, facts: Facts, *, runtime: str | Runtime = "dsengine", count: int = 3
) -> tuple[Change, ...]:
    """Return the ``count`` fastest changes that make the config fit; if none does, those that save
    most.

    Pairs of changes are offered only if neither change alone fits and is as fast; parallel degrees
    only if nothing else fits without offload. LoRA or QLoRA comes last, since it trains something
    else.
    """
    facts = _without_redundant_false(effective, facts)
    program = runtime_of(runtime)
    evaluator = _Evaluator(effective, facts, program)
    choices = ([choice] for choice in _other_choices(effective, facts))
    all_series = [*_of_the_run(effective, facts, program), *choices]
    found = [change for series in all_series for change in evaluator.evaluate(series)]
    if not any(map(_fits_on_device, found)):
        for series in _degrees(effective, facts, program):
            found += evaluator.first_fitting(series)
    if sum(change.fits for change in found) < count:
        alone = {change.what: change.slowdown for change in found if change.fits}
        pairs = [
            change
            for series in _pairs(effective, facts, program)
            for change in evaluator.evaluate(series)
        ]
        if not any(map(_fits_on_device, (*found, *pairs))):
            for series in _degrees_with_others(effective, facts, program):
                pairs += evaluator.first_fitting(series)
        found += [
            pair
            for pair in pairs
            if all(alone.get(part, inf) > pair.slowdown for part in pair.parts)
        ]
    fitting = sorted((change for change in found if change.fits), key=lambda it: it.slowdown)
    rest = sorted((change for change in found if not change.fits), key=lambda it: -it.saved_bytes)
    adapted = evaluator.first_fitting(_adapters(effective, facts))
    return tuple([*fitting[:count], *adapted] or rest[:count])


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


GRADIENT_CHECKPOINTING = "gradient_checkpointing"


class _Evaluator:
    """Estimates changes against the current config."""

    def __init__(self, effective: Effective, facts: Facts, runtime: str | Runtime) -> None:
        self._facts, self._runtime = facts, runtime
        self._peak = estimate_option(effective, facts, runtime=runtime).device.peak_bytes
        self._time = self._seconds(effective, facts)

    def _seconds(self, effective: Effective, facts: Facts) -> float:
        if effective.batch is None:
            return 1.0
        return step_time(effective, facts, runtime=self._runtime).seconds_per_sample

    def evaluate(self, series: "Series") -> Iterator[Change]:
        """Yield the useful changes of one series, up to the first that does not fit."""
        for candidate in series:
            change = self._change(candidate)
            if change is not None:
                yield change
            if change is None or not change.fits:
                return

    def first_fitting(self, candidates: "Iterable[Candidate]") -> list[Change]:
        """Return the first change that fits, or nothing."""
        changes = (self._change(candidate) for candidate in candidates)
        return list(islice((change for change in changes if change and change.fits), 1))

    def _change(self, candidate: "Candidate") -> Change | None:
        """Return the change with its estimate; None if it neither fits nor saves memory."""
        changed, facts = candidate.effective, candidate.facts or self._facts
        if SELECTIVE_RECOMPUTATION in candidate.edits:
            facts = recomputing_selectively(facts)
        option = estimate_option(changed, facts, runtime=self._runtime)
        saved = self._peak - option.device.peak_bytes
        fits = verdict_on(option, changed, facts).fits
        if saved <= 0 and not fits:
            return None
        return Change(
            parts=candidate.parts,
            edits=candidate.edits,
            option=option,
            fits=fits,
            saved_bytes=saved,
            slowdown=self._seconds(changed, facts) / self._time,
        )


class Candidate(NamedTuple):
    """Descriptions of changes, their values by pointer, and the resulting config."""

    parts: tuple[str, ...]
    edits: dict[str, Any]
    effective: Effective
    facts: Facts | None = None
    """Those of a run that trains something else, or at other degrees."""


Series = list[Candidate]
"""Changes of one kind, largest saving first: if one does not fit, the following ones do not either.
"""


def _of_the_run(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Series]:
    """Yield changes of batch, recomputation and buckets: those that combine with any stage and
    offload."""
    batches = list(_smaller_batches(effective))[::-1]
    if batches:
        yield batches
    yield from ([change] for change in _recomputation(effective, facts, program))
    yield from ([smaller] for smaller in _smaller_buckets(effective))


def _pairs(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Series]:
    """Yield each of these combined with a stage and offload, and smaller batches with
    recomputation."""
    for series in _of_the_run(effective, facts, program):
        with_others = [[*_joined(each, _other_choices(each.effective, facts))] for each in series]
        yield from map(list, zip(*with_others, strict=True))
    smaller = list(_smaller_batches(effective))[::-1]
    joined = (
        list(_joined(each, _recomputation(each.effective, facts, program))) for each in smaller
    )
    both = [pair for pairs in joined for pair in pairs]
    if both:
        yield both


def _joined(first: Candidate, others: Iterable[Candidate]) -> Iterator[Candidate]:
    for other in others:
        edits = {**first.edits, **other.edits}
        yield Candidate((*first.parts, *other.parts), edits, other.effective, first.facts)


def _degrees(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Series]:
    """Yield the parallel degrees of each axis, smallest first, with more accumulation: the same
    global batch. Nothing if the run sets one."""
    batch, ranks = effective.batch, facts.world_size
    if batch is None or ranks is None:
        return
    if facts_in_force(effective, facts, program).degrees != UNDIVIDED:
        return
    series: dict[str, Series] = {}
    for divided in possible(facts, program):
        degrees, samples = divided.degrees, divided.data_parallel or 1
        if effective.zero.stage not in stages_under(program, degrees):
            continue
        steps = batch.accumulation * batch.data_parallel // samples
        edits = settings_of(program, degrees, ranks)
        if effective.zero.gather_16bit_weights_on_model_save:
            edits.pop(GATHERED_ON_SAVE, None)
        if steps != batch.accumulation:
            edits[f"/{STEPS}"] = steps
        changed = with_micro_batch(effective, batch.micro_batch, steps, samples)
        label = described(degrees)
        axis = label.partition(" ")[0]
        series.setdefault(axis, []).append(Candidate((label,), edits, changed, divided))
    yield from series.values()


def _degrees_with_others(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Series]:
    """Yield the degrees of each axis with recomputation, with a stage and offload, with both."""
    for series in _degrees(effective, facts, program):
        again = [
            list(_joined(each, _recomputation(each.effective, facts, program))) for each in series
        ]
        recomputed = [list(each) for each in zip(*again, strict=True)]
        yield from recomputed
        for base in (series, *recomputed):
            others = [list(_joined(each, _other_choices(each.effective, facts))) for each in base]
            for combined in zip(*others, strict=True):
                yield [each for each in combined if _is_executed(each, program)]


def _is_executed(candidate: Candidate, program: Runtime) -> bool:
    """Return whether the program executes the candidate's degrees at its stage."""
    assert candidate.facts is not None
    return candidate.effective.zero.stage in stages_under(program, candidate.facts.degrees)


def _recomputation(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Candidate]:
    """Yield recomputation unless it is already on or set by a flag."""
    if (
        recompute_of(effective, facts) is Recompute.FULL
        or GRADIENT_CHECKPOINTING in facts.execution
    ):
        return
    edits: dict[str, Any] = {RECOMPUTATION: dict(RECOMPUTED)}
    yield Candidate(("recompute activations",), edits, with_recomputation(effective))
    if can_select(facts, program):
        yield Candidate(("recompute selectively",), {SELECTIVE_RECOMPUTATION: True}, effective)


LORA_RANK_OFFERED = 16


def _adapters(effective: Effective, facts: Facts) -> Iterator[Candidate]:
    """Yield LoRA and QLoRA, each also with recomputation; QLoRA alone if adapters are trained."""
    model, recompute = facts.model, recompute_of(effective, facts)
    if model is None or model.root is None or facts.base_weights is not None:
        return
    adapted: list[tuple[str, dict[str, Any], Facts]] = []
    edits: dict[str, Any] = {}
    if model.trainable == model.parameters:
        try:
            model = with_adapters(model, LORA_RANK_OFFERED)
        except ValueError:  # no linear layer in its blocks
            return
        facts = replace(facts, model=model)
        edits = {LORA_RANK: LORA_RANK_OFFERED}
        adapted.append((f"LoRA: adapters of rank {LORA_RANK_OFFERED}", edits, facts))
    adapters = f"adapters of rank {LORA_RANK_OFFERED} on " if edits else ""
    quantized = replace(facts, base_weights=str(BaseWeights.FOUR_BIT))
    edits = {**edits, BASE_WEIGHTS: str(BaseWeights.FOUR_BIT)}
    adapted.append((f"QLoRA: {adapters}4-bit base weights", edits, quantized))
    for what, changes, known in adapted:
        yield Candidate((what,), changes, effective, known)
        if recompute is not Recompute.FULL and GRADIENT_CHECKPOINTING not in facts.execution:
            again = {**changes, RECOMPUTATION: dict(RECOMPUTED)}
            parts = (what, "recompute activations")
            yield Candidate(parts, again, with_recomputation(effective), known)


def _smaller_batches(effective: Effective) -> Iterator[Candidate]:
    """Yield each proper divisor of the micro batch, with more accumulation: the
    same global batch."""
    batch = effective.batch
    if batch is None:
        return
    for parts in divisors(batch.micro_batch)[1:]:
        micro, steps = batch.micro_batch // parts, batch.accumulation * parts
        keys = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps}
        edits = {f"/{key}": value for key, value in keys.items()}
        changed = with_micro_batch(effective, micro, steps)
        yield Candidate((f"micro batch {micro}",), edits, changed)


def _smaller_buckets(effective: Effective) -> Iterator[Candidate]:
    zero = effective.zero
    if zero.stage == 0:
        return
    if zero.reduce_bucket_size > 50_000_000:
        smaller = replace(zero, reduce_bucket_size=50_000_000)
        edits = {paths.REDUCE_BUCKET.pointer: 50_000_000}
        yield Candidate(("reduce bucket 5e7",), edits, replace(effective, zero=smaller))
    if zero.stage == 3 and zero.max_live_parameters > 100_000_000:
        smaller = replace(zero, max_live_parameters=100_000_000, max_reuse_distance=100_000_000)
        edits = {
            (paths.ZERO / "stage3_max_live_parameters").pointer: 100_000_000,
            (paths.ZERO / "stage3_max_reuse_distance").pointer: 100_000_000,
        }
        changed = replace(effective, zero=smaller)
        yield Candidate(("fewer live parameters (1e8)",), edits, changed)


def _other_choices(effective: Effective, facts: Facts) -> Iterator[Candidate]:
    now = effective.zero
    for choice in USUAL:
        same = (choice.stage, choice.optimizer, choice.parameters) == (
            now.stage,
            now.optimizer_tier,
            now.parameter_tier,
        )
        if not same and choice.stage >= now.stage and supports_stage(facts, choice.stage):
            # The edit replaces the offload blocks.
            plain = replace(now, offload_optimizer=None, offload_param=None)
            zero = with_choice(plain, choice, facts)
            if zero.optimizer_tier is Tier.NVME and not _nvme_path(zero):
                continue  # DSC432: there is no directory to name
            edits = choice_edits(zero) | _unset_offloads(now, zero)
            if zero.stage == 3 and now.stage != 3 and not zero.gather_16bit_weights_on_model_save:
                zero = replace(zero, gather_16bit_weights_on_model_save=True)
                edits[GATHERED_ON_SAVE] = True
            yield Candidate((_what(now, zero),), edits, replace(effective, zero=zero))


def _nvme_path(zero: Zero) -> str | None:
    return zero.offload_optimizer.nvme_path if zero.offload_optimizer else None


def _what(now: Zero, then: Zero) -> str:
    """Return ``stage 3, optimizer to CPU``: only what changes."""
    tiers = {
        "optimizer": (now.optimizer_tier, then.optimizer_tier),
        "parameters": (now.parameter_tier, then.parameter_tier),
    }
    moved = {what: to for what, (before, to) in tiers.items() if before is not to}
    away = {what: TIER_NAMES[to] for what, to in moved.items() if to is not Tier.DEVICE}
    back = [what for what, to in moved.items() if to is Tier.DEVICE]
    parts = [f"stage {then.stage}"] if now.stage != then.stage else []
    if away:
        parts.append(offload_label(away.get("optimizer", "none"), away.get("parameters", "none")))
    if back:
        parts.append(f"{' + '.join(back)} on the GPU")
    return ", ".join(parts)


def _unset_offloads(now: Zero, then: Zero) -> dict[str, Any]:
    """Return the edits for tiers that are in the file but not in the choice."""
    blocks = {
        "offload_optimizer": (now.optimizer_tier, then.optimizer_tier),
        "offload_param": (now.parameter_tier, then.parameter_tier),
    }
    return {
        (paths.ZERO / key).pointer: {"device": TIER_NAMES[Tier.DEVICE]}
        for key, (current, wanted) in blocks.items()
        if wanted is Tier.DEVICE and current is not Tier.DEVICE
    }

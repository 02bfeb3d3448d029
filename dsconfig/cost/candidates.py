"""Single changes of a config and its run, and their combinations, that may reduce memory."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple, Protocol

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
from dsconfig.cost.loss import LIGER_FAMILIES, SELECTS_LOSS, Loss
from dsconfig.facts.adapters import with_adapters
from dsconfig.facts.base_weights import BaseWeights
from dsconfig.facts.facts import Facts
from dsconfig.mesh import divisors
from dsconfig.runtimes.base import (
    ARGUMENTS,
    BASE_WEIGHTS,
    LORA_RANK,
    LOSS,
    RECOMPUTATION,
    SELECTIVE_RECOMPUTATION,
    Runtime,
)
from dsconfig.runtimes.capabilities import GATHERED_ON_SAVE, settings_of, stages_under
from dsconfig.runtimes.effective import TIER_NAMES, Effective, Tier, Zero

GRADIENT_CHECKPOINTING = "gradient_checkpointing"
LORA_RANK_OFFERED = 16


class Candidate(NamedTuple):
    """Descriptions of changes, their values by pointer, and the resulting config and facts."""

    parts: tuple[str, ...]
    edits: dict[str, Any]
    effective: Effective
    facts: Facts


Series = list[Candidate]
"""Changes of one kind, largest saving first: if one does not fit, the following ones do not either.
"""


def single(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Series]:
    """Yield the changes of batch, recomputation, loss and buckets, then of stage and offload."""
    yield from _of_the_run(effective, facts, program)
    yield from ([choice] for choice in _other_choices(effective, facts, program))


def pairs(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Series]:
    """Yield changes of the run with each other, and each with a stage and offload."""
    series = list(_of_the_run(effective, facts, program))
    for one in series:
        with_choices = [[*_joined(each, _other_choices, program)] for each in one]
        yield from map(list, zip(*with_choices, strict=True))
    for kind, other in combinations((_batches, _recomputation, _fused_loss), 2):
        firsts = kind(effective, facts, program)
        both = [pair for first in firsts for pair in _joined(first, other, program)]
        if both:
            yield both


def degrees(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Series]:
    """Yield the parallel degrees of each axis, smallest first, with more accumulation: the same
    global batch. Nothing if the run sets one."""
    batch, ranks = effective.batch, facts.world_size
    if batch is None or ranks is None:
        return
    series: dict[str, Series] = {}
    for divided in possible(facts, program):
        own, samples = divided.degrees, divided.data_parallel or 1
        if effective.zero.stage not in stages_under(program, own):
            continue
        steps = batch.accumulation * batch.data_parallel // samples
        edits = settings_of(program, own, ranks)
        if effective.zero.gather_16bit_weights_on_model_save:
            edits.pop(GATHERED_ON_SAVE, None)
        if steps != batch.accumulation:
            edits[f"/{STEPS}"] = steps
        changed = with_micro_batch(effective, batch.micro_batch, steps, samples)
        label = described(own)
        axis = label.partition(" ")[0]
        series.setdefault(axis, []).append(Candidate((label,), edits, changed, divided))
    yield from series.values()


def degrees_with_others(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Series]:
    """Yield the degrees of each axis with recomputation or another loss, with a stage and offload,
    and with recomputation and these."""
    for series in degrees(effective, facts, program):
        recomputed = _each_joined(series, _recomputation, program)
        yield from recomputed
        yield from _each_joined(series, _fused_loss, program)
        for base in (series, *recomputed):
            yield from _each_joined(base, _other_choices, program)


def adapters(effective: Effective, facts: Facts) -> Iterator[Candidate]:
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
    ranked = f"adapters of rank {LORA_RANK_OFFERED} on " if edits else ""
    quantized = replace(facts, base_weights=str(BaseWeights.FOUR_BIT))
    edits = {**edits, BASE_WEIGHTS: str(BaseWeights.FOUR_BIT)}
    adapted.append((f"QLoRA: {ranked}4-bit base weights", edits, quantized))
    for what, changes, known in adapted:
        yield Candidate((what,), changes, effective, known)
        if recompute is not Recompute.FULL and GRADIENT_CHECKPOINTING not in facts.execution:
            again = {**changes, RECOMPUTATION: dict(RECOMPUTED)}
            parts = (what, "recompute activations")
            yield Candidate(parts, again, with_recomputation(effective), known)


class Kind(Protocol):
    """Yields the changes of one kind for a config and its run."""

    def __call__(
        self, effective: Effective, facts: Facts, program: Runtime, /
    ) -> Iterable[Candidate]: ...


def _joined(first: Candidate, others: Kind, program: Runtime) -> Iterator[Candidate]:
    """Yield a change with each of another kind."""
    for other in others(first.effective, first.facts, program):
        edits = {**first.edits, **other.edits}
        yield Candidate((*first.parts, *other.parts), edits, other.effective, other.facts)


def _each_joined(series: Series, others: Kind, program: Runtime) -> list[Series]:
    """Return a series for each change of another kind."""
    combined = [list(_joined(each, others, program)) for each in series]
    return list(map(list, zip(*combined, strict=True)))


def _of_the_run(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Series]:
    """Yield changes of batch, recomputation, loss and buckets: those that combine with any stage
    and offload."""
    batches = list(_batches(effective, facts, program))
    if batches:
        yield batches
    for kind in (_recomputation, _fused_loss, _smaller_buckets):
        yield from ([change] for change in kind(effective, facts, program))


def _recomputation(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Candidate]:
    """Yield recomputation unless it is already on or set by a flag."""
    if (
        recompute_of(effective, facts) is Recompute.FULL
        or GRADIENT_CHECKPOINTING in facts.execution
    ):
        return
    edits: dict[str, Any] = {RECOMPUTATION: dict(RECOMPUTED)}
    yield Candidate(("recompute activations",), edits, with_recomputation(effective), facts)
    if can_select(facts, program):
        selective = recomputing_selectively(facts)
        edits = {SELECTIVE_RECOMPUTATION: True}
        yield Candidate(("recompute selectively",), edits, effective, selective)


def _fused_loss(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Candidate]:
    """Yield Liger's loss, which computes no logits, unless a loss is set.

    Its kernel needs all of the head, and a module that has the hidden states."""
    shape, own = facts.architecture, facts.degrees
    if shape is None or facts.sequence_length is None or facts.on_cpu:
        return
    if SELECTS_LOSS & facts.execution.keys() or own.tensor > 1 or own.pipeline > 1:
        return
    by_argument = program.set_elsewhere[LOSS].where == ARGUMENTS
    if by_argument and shape.family not in LIGER_FAMILIES:
        return
    fused: dict[str, Any] = {"loss": str(Loss.FUSED_LINEAR)}
    if by_argument:
        fused = {"use_liger_kernel": True}
    edits = {LOSS: str(Loss.FUSED_LINEAR)}
    yield Candidate(("fused loss (Liger)",), edits, effective, facts.with_execution(fused))


def _batches(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Candidate]:
    """Yield each proper divisor of the micro batch, smallest first, with more accumulation: the
    same global batch."""
    batch = effective.batch
    if batch is None:
        return
    for parts in divisors(batch.micro_batch)[:0:-1]:
        micro, steps = batch.micro_batch // parts, batch.accumulation * parts
        keys = {"train_micro_batch_size_per_gpu": micro, STEPS: steps}
        edits = {f"/{key}": value for key, value in keys.items()}
        changed = with_micro_batch(effective, micro, steps)
        yield Candidate((f"micro batch {micro}",), edits, changed, facts)


def _smaller_buckets(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Candidate]:
    zero = effective.zero
    if zero.stage == 0:
        return
    if zero.reduce_bucket_size > 50_000_000:
        smaller = replace(zero, reduce_bucket_size=50_000_000)
        edits = {"/zero_optimization/reduce_bucket_size": 50_000_000}
        yield Candidate(("reduce bucket 5e7",), edits, replace(effective, zero=smaller), facts)
    if zero.stage == 3 and zero.max_live_parameters > 100_000_000:
        smaller = replace(zero, max_live_parameters=100_000_000, max_reuse_distance=100_000_000)
        edits = {
            "/zero_optimization/stage3_max_live_parameters": 100_000_000,
            "/zero_optimization/stage3_max_reuse_distance": 100_000_000,
        }
        changed = replace(effective, zero=smaller)
        yield Candidate(("fewer live parameters (1e8)",), edits, changed, facts)


def _other_choices(effective: Effective, facts: Facts, program: Runtime) -> Iterator[Candidate]:
    now, executed = effective.zero, stages_under(program, facts.degrees)
    for choice in USUAL:
        same = (choice.stage, choice.optimizer, choice.parameters) == (
            now.stage,
            now.optimizer_tier,
            now.parameter_tier,
        )
        is_possible = choice.stage in executed and supports_stage(facts, choice.stage)
        if not same and choice.stage >= now.stage and is_possible:
            # The edit replaces the offload blocks.
            plain = replace(now, offload_optimizer=None, offload_param=None)
            zero = with_choice(plain, choice, facts)
            if zero.optimizer_tier is Tier.NVME and not _nvme_path(zero):
                continue  # DSC432: there is no directory to name
            edits = choice_edits(zero) | _unset_offloads(now, zero)
            if zero.stage == 3 and now.stage != 3 and not zero.gather_16bit_weights_on_model_save:
                zero = replace(zero, gather_16bit_weights_on_model_save=True)
                edits[GATHERED_ON_SAVE] = True
            yield Candidate((_what(now, zero),), edits, replace(effective, zero=zero), facts)


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
        f"/zero_optimization/{key}": {"device": TIER_NAMES[Tier.DEVICE]}
        for key, (current, wanted) in blocks.items()
        if wanted is Tier.DEVICE and current is not Tier.DEVICE
    }

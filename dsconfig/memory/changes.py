"""What would make a config fit: single changes, cheapest in step time first."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dsconfig.facts.facts import Facts
from dsconfig.memory.activations import recompute_of
from dsconfig.memory.answer import price
from dsconfig.memory.choices import (
    USUAL,
    Choice,
    choice_of,
    with_choice,
    with_micro_batch,
    with_recomputation,
)
from dsconfig.memory.estimate import Option
from dsconfig.memory.speed import step_time
from dsconfig.runtimes.base import Runtime
from dsconfig.runtimes.effective import Effective, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One edit of the config with what it brings.

    ``slowdown`` is the expected time per sample over today's; ``edits`` are values by pointer.
    """

    what: str
    edits: dict[str, Any]
    option: Option
    fits: bool
    saved_bytes: int
    slowdown: float


def cheapest_changes(
    effective: Effective, facts: Facts, *, runtime: str | Runtime = "dsengine", count: int = 3
) -> tuple[Change, ...]:
    """The ``count`` cheapest changes that make it fit; if none does, those that save most."""
    judge = _Judge(effective, facts, runtime)
    lines = list(_candidates(effective, facts))
    found = [change for line in lines for change in judge.along(line)]
    if sum(change.fits for change in found) < count:
        found += [change for line in _pairs(lines) for change in judge.along(line)]
    fitting = sorted((each for each in found if each.fits), key=lambda each: each.slowdown)
    rest = sorted((each for each in found if not each.fits), key=lambda each: -each.saved_bytes)
    return tuple((fitting or rest)[:count])


class _Judge:
    """Prices changes against the config as it is."""

    def __init__(self, effective: Effective, facts: Facts, runtime: str | Runtime) -> None:
        self._facts, self._runtime = facts, runtime
        self._peak = price(effective, facts, runtime=runtime).device.peak_bytes
        self._time = self._seconds(effective)

    def _seconds(self, effective: Effective) -> float:
        return step_time(effective, self._facts).seconds_per_sample if effective.batch else 1.0

    def along(self, line: "Line") -> Iterator[Change]:
        """The changes of one line that save bytes: from the farthest back to one too large."""
        for candidate in line:
            change = self._change(candidate)
            if change is not None:
                yield change
            if change is None or not change.fits:
                return

    def _change(self, candidate: "Candidate") -> Change | None:
        """The change with its price; None when it saves nothing."""
        what, edits, changed = candidate
        option = price(changed, self._facts, runtime=self._runtime)
        saved = self._peak - option.device.peak_bytes
        if saved <= 0:
            return None
        return Change(
            what=what,
            edits=edits,
            option=option,
            fits=all(fit.fits for fit in option.fits),
            saved_bytes=saved,
            slowdown=self._seconds(changed) / self._time,
        )


Candidate = tuple[str, dict[str, Any], Effective]
Line = list[Candidate]
"""Changes of one kind, that which saves most first: what follows it cannot fit if it does not."""


def _pairs(lines: list[Line]) -> Iterator[Line]:
    """A change of batch or recomputation together with one of stage and offload."""
    for line in lines:
        if not line[0][0].startswith("stage"):
            with_others = [[*_joined(each)] for each in line]
            yield from map(list, zip(*with_others, strict=True))


def _joined(candidate: Candidate) -> Iterator[Candidate]:
    what, edits, changed = candidate
    for other, more, both in _other_choices(changed):
        yield f"{what}, {other}", {**edits, **more}, both


def _candidates(effective: Effective, facts: Facts) -> Iterator[Line]:
    batches = list(_smaller_batches(effective))
    if batches:
        yield batches[::-1]
    if recompute_of(effective, facts) != "full":
        settings: dict[str, Any] = {"/activation_checkpointing": {"partition_activations": False}}
        # A flag of the training script is stronger than the block in the file.
        if facts.training is None or "gradient_checkpointing" not in facts.training.arguments:
            yield [("recompute activations", settings, with_recomputation(effective))]
    for each in (*_smaller_buckets(effective), *_other_choices(effective)):
        yield [each]


def _smaller_batches(effective: Effective) -> Iterator[Candidate]:
    """Halve the micro batch, and double accumulation, so that the global batch stays."""
    batch = effective.batch
    if batch is None:
        return
    micro, steps = batch.micro_batch, batch.accumulation
    while micro > 1 and micro % 2 == 0:
        micro, steps = micro // 2, steps * 2
        edits = {"/train_micro_batch_size_per_gpu": micro, "/gradient_accumulation_steps": steps}
        yield f"micro batch {micro}", edits, with_micro_batch(effective, micro, steps)


def _smaller_buckets(effective: Effective) -> Iterator[Candidate]:
    zero = effective.zero
    if zero.stage == 0:
        return
    if zero.reduce_bucket_size > 50_000_000:
        smaller = replace(zero, reduce_bucket_size=50_000_000)
        edits = {"/zero_optimization/reduce_bucket_size": 50_000_000}
        yield "reduce bucket 5e7", edits, replace(effective, zero=smaller)
    if zero.stage == 3 and zero.max_live_parameters > 100_000_000:
        smaller = replace(zero, max_live_parameters=100_000_000, max_reuse_distance=100_000_000)
        edits = {
            "/zero_optimization/stage3_max_live_parameters": 100_000_000,
            "/zero_optimization/stage3_max_reuse_distance": 100_000_000,
        }
        yield "fewer live parameters (1e8)", edits, replace(effective, zero=smaller)


def _other_choices(effective: Effective) -> Iterator[Candidate]:
    now = choice_of(effective)
    for choice in USUAL:
        if choice != now and choice.stage >= now.stage:
            changed = replace(effective, zero=with_choice(effective.zero, choice))
            yield choice.label, choice_edits(choice), changed


def choice_edits(choice: Choice) -> dict[str, Any]:
    """Values by pointer that turn a config to this choice."""
    names = {Tier.HOST: "cpu", Tier.NVME: "nvme"}
    edits: dict[str, Any] = {"/zero_optimization/stage": choice.stage}
    for key, tier in (("offload_optimizer", choice.optimizer), ("offload_param", choice.params)):
        if tier is not Tier.DEVICE:
            edits[f"/zero_optimization/{key}"] = {"device": names[tier], "pin_memory": True}
    return edits

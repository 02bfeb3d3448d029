"""Stage and offload targets: the cheapest in expected step time that holds micro batch 1."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dsconfig.facts import Facts
from dsconfig.report import Effect
from dsconfig.resolver import buckets, step_time
from dsconfig.resolver.draft import Draft
from dsconfig.resolver.resolution import Source
from dsconfig.resolver.sizing import (
    GIB,
    TIGHT,
    Need,
    Sizer,
    missing_flags,
    sizer,
    with_tiers,
)
from dsconfig.runtimes.effective import Tier

STAGE = "zero_optimization.stage"
OPTIMIZER = "zero_optimization.offload_optimizer.device"
PARAMETERS = "zero_optimization.offload_param.device"
NAME_OF_TIER = {Tier.DEVICE: "none", Tier.HOST: "cpu", Tier.NVME: "nvme"}
TIER_OF_NAME = {name: tier for tier, name in NAME_OF_TIER.items()}


@dataclass(frozen=True, slots=True)
class Choice:
    """One combination with its price; ``lacks`` says what does not suffice, empty if all does."""

    stage: int
    optimizer: Tier
    parameters: Tier
    need: Need
    lacks: str

    def __str__(self) -> str:
        targets = (("optimizer", self.optimizer), ("parameters", self.parameters))
        moved = [f"{what} on {NAME_OF_TIER[tier]}" for what, tier in targets if tier != Tier.DEVICE]
        return " with ".join(
            [f"stage {self.stage}", " and ".join(moved)] if moved else [f"stage {self.stage}"]
        )


def fill(draft: Draft) -> None:
    """Settle what is "auto" among the three; what the file says is never changed."""
    open_paths = [path for path in (STAGE, OPTIMIZER, PARAMETERS) if draft.is_auto(path)]
    if not open_paths:
        return
    priced = sizer(draft)
    if priced is None:
        _ask(draft, open_paths)
        return
    allowed = (draft.is_auto(STAGE), draft.is_auto(OPTIMIZER), draft.is_auto(PARAMETERS))
    choice, refused = _cheapest(draft, priced, *allowed)
    if choice is not None:
        _write(draft, choice, refused)
    else:
        _nothing_fits(draft, priced, open_paths, refused)


def way_out(draft: Draft, priced: Sizer) -> str:
    """The cheapest choice that would fit, were stage and offload targets open; as advice."""
    for pricing, condition in (
        (priced, ""),
        (priced.recomputing(), " together with activation checkpointing"),
    ):
        choice, _ = _cheapest(draft, pricing, True, True, True)
        if choice is not None:
            need = f"{choice.need.device / GIB:.1f} GiB"
            return f"{choice}{condition} would hold it ({need})"
    return "no stage or offload target holds it: use more or larger devices"


def _cheapest(
    draft: Draft, priced: Sizer, stages: bool, optimizers: bool, parameters: bool
) -> tuple[Choice | None, list[Choice]]:
    """The first with room to spare in order of expected time, and what was passed over.

    One that fits with less than 5 % to spare is taken only when nothing else fits: the
    estimate's own error is of that size.
    """
    passed: list[Choice] = []
    tight: Choice | None = None
    for choice in _by_time(draft, priced, stages, optimizers, parameters):
        if not choice.lacks and choice.need.device <= TIGHT * _capacity(draft.facts):
            return choice, passed
        if not choice.lacks and tight is None:
            tight = choice
        passed.append(choice)
    return tight, passed


def _capacity(facts: Facts) -> float:
    memory = facts.device.memory_bytes if facts.device else None
    return memory if memory is not None else float("inf")


def _ask(draft: Draft, open_paths: list[str]) -> None:
    flags = missing_flags(draft.facts)
    for path in open_paths:
        draft.missing(
            path,
            "the choice depends on what fits, and too little is known to estimate memory",
            f"give {' and '.join(flags)}" if flags else "mend the errors in the config first",
        )


def _by_time(
    draft: Draft, priced: Sizer, stages: bool, optimizers: bool, parameters: bool
) -> Iterator[Choice]:
    """Open choices, the quickest first; each is priced only when it is its turn."""
    base = priced.base.zero
    written = draft.value("gradient_accumulation_steps")
    steps = written if isinstance(written, int) and written > 0 else 1
    width = priced.base.numerics.precision.bytes

    def seconds(combination: tuple[int, Tier, Tier]) -> float:
        return step_time.seconds(draft.facts, *combination, width=width, accumulation=steps)

    nvme = draft.facts.host is not None and draft.facts.host.nvme_path is not None
    every = (Tier.DEVICE, Tier.HOST, Tier.NVME) if nvme else (Tier.DEVICE, Tier.HOST)
    combinations = [
        (stage, first, second)
        for stage in ((0, 1, 2, 3) if stages else (base.stage,))
        for first in (every if optimizers else (base.optimizer_tier,))
        for second in (every if parameters else (base.parameter_tier,))
        if _works(stage, first, second)
    ]
    for stage, first, second in sorted(combinations, key=seconds):
        zero = buckets.trial(draft, with_tiers(replace(base, stage=stage), first, second))
        need = priced.need(zero, 1)
        yield Choice(
            stage=stage,
            optimizer=first,
            parameters=second,
            need=need,
            lacks=_lacks(draft.facts, need),
        )


def _works(stage: int, optimizer: Tier, parameters: Tier) -> bool:
    """Optimizer states move from stage 1 up, to NVMe and parameters at all only at stage 3."""
    if parameters is not Tier.DEVICE and (stage < 3 or optimizer is Tier.DEVICE):
        return False
    if optimizer is Tier.NVME:
        return stage == 3
    return optimizer is Tier.DEVICE or stage >= 1


def _lacks(facts: Facts, need: Need) -> str:
    device = facts.device
    room = (
        (device.name if device else "the device", need.device, device and device.memory_bytes),
        ("main memory", need.host, facts.host and facts.host.memory_bytes),
        ("NVMe", need.nvme, facts.host and facts.host.nvme_bytes),
    )
    short = [
        f"{what}: needs {wanted / GIB:.1f} of {there / GIB:.1f} GiB"
        for what, wanted, there in room
        if there is not None and wanted > there
    ]
    return "; ".join(short)


def _write(draft: Draft, choice: Choice, refused: list[Choice]) -> None:
    inputs: dict[str, Any] = {
        "device_bytes": choice.need.device,
        "host_bytes": choice.need.host,
        "too_big": {str(o): o.lacks or "fits with less than 5 % to spare" for o in refused},
    }
    rule = f"{choice} is the cheapest in expected step time that holds micro batch 1"
    for path, value in (
        (STAGE, choice.stage),
        (OPTIMIZER, NAME_OF_TIER[choice.optimizer]),
        (PARAMETERS, NAME_OF_TIER[choice.parameters]),
    ):
        if draft.is_auto(path):
            draft.fill(path, value, Source.MEMORY, rule, **inputs)
    _name_disks(draft, choice)
    _warn_about_host(draft, choice)


def _name_disks(draft: Draft, choice: Choice) -> None:
    host = draft.facts.host
    for what, tier in (("optimizer", choice.optimizer), ("param", choice.parameters)):
        path = f"zero_optimization.offload_{what}.nvme_path"
        if tier is Tier.NVME and host is not None and not draft.explicit(path):
            draft.fill(path, host.nvme_path, Source.HARDWARE, "from --nvme")


def _warn_about_host(draft: Draft, choice: Choice) -> None:
    host = draft.facts.host
    if choice.need.host and (host is None or host.memory_bytes is None):
        draft.report(
            "DSC153",
            "host-memory-unknown",
            Effect.NOTE,
            OPTIMIZER,
            f"offloading needs {choice.need.host / GIB:.1f} GiB of main memory on each node, and "
            "how much there is was not said",
            "give --host-memory",
        )


def _nothing_fits(
    draft: Draft, priced: Sizer, open_paths: list[str], refused: list[Choice]
) -> None:
    draft.given_up.update(open_paths)
    if not refused:
        draft.report(
            "DSC154",
            "nothing-fits",
            Effect.REFUSED,
            open_paths[0],
            "no stage goes with the offload targets that the config sets",
            'offloading parameters needs stage 3 and an offloaded optimizer; write "auto" for them',
        )
        return
    nearest = min(refused, key=lambda choice: choice.need.device)
    draft.report(
        "DSC154",
        "nothing-fits",
        Effect.REFUSED,
        open_paths[0],
        f"no allowed choice holds micro batch 1; the nearest, {nearest}, fails on {nearest.lacks}",
        f'{way_out(draft, priced)}; write "auto" for what the config fixes, or give --nvme',
    )

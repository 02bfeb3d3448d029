"""How much memory a choice would take: the resolver's one door to the estimator."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from dsconfig.facts import Facts
from dsconfig.resolver.draft import Draft
from dsconfig.runtimes.base import AUTO, Runtime
from dsconfig.runtimes.effective import Batch, Effective, Offload, Tier, Zero, effective

GIB = 2**30
TIGHT = 0.95
"""From this share of a device's memory on, the estimate's own error may decide."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes: on one device, in one node's main memory, on one node's NVMe."""

    device: int
    host: int
    nvme: int


@dataclass(frozen=True, slots=True)
class Sizer:
    """Prices variations of one config; made once, asked often."""

    base: Effective
    facts: Facts
    runtime: Runtime

    def need(self, zero: Zero, micro_batch: int) -> Need:
        """What ``micro_batch`` samples under ``zero`` would take."""
        ranks = self.facts.data_parallel or 1
        batch = Batch(
            global_batch=micro_batch * ranks,
            micro_batch=micro_batch,
            accumulation=1,
            data_parallel=ranks,
        )
        return _price(replace(self.base, zero=zero, batch=batch), self.facts, self.runtime)

    def recomputing(self) -> "Sizer":
        """The same with every block's activations recomputed in backward."""
        settings = replace(self.base.activation_checkpointing, enabled=True)
        return replace(self, base=replace(self.base, activation_checkpointing=settings))


def sizer(draft: Draft) -> Sizer | None:
    """None where the facts or the config do not allow an estimate; see :func:`missing_flags`."""
    if missing_flags(draft.facts):
        return None
    try:
        base = effective(_without_auto(draft.config), draft.facts, version=draft.runtime.version)
    except (ValueError, TypeError):
        return None
    return Sizer(base, draft.facts, draft.runtime)


def missing_flags(facts: Facts) -> tuple[str, ...]:
    """The flags that an estimate still needs."""
    needed: dict[str, object] = {
        "--gpus": facts.world_size,
        "--device": facts.device and facts.device.memory_bytes,
        "--model or --params": facts.model,
    }
    if facts.model is not None and facts.model.architecture is not None:
        # Without it no activations would be counted, and everything would seem to fit.
        needed["--seq-len"] = facts.training and facts.training.sequence_length
    return tuple(flag for flag, fact in needed.items() if fact is None)


def with_tiers(zero: Zero, optimizer: Tier, parameters: Tier) -> Zero:
    """``zero`` with its two offload targets changed, their other settings kept."""
    return replace(
        zero,
        offload_optimizer=_offload(zero.offload_optimizer, optimizer),
        offload_param=_offload(zero.offload_param, parameters),
    )


def _offload(offload: Offload | None, tier: Tier) -> Offload | None:
    if tier is Tier.DEVICE:
        return None
    return replace(offload, tier=tier) if offload else Offload(tier=tier)


def _without_auto(value: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, child in value.items():
        if isinstance(child, dict):
            kept[key] = _without_auto(cast(Mapping[str, Any], child))
        elif not (isinstance(child, str) and child == AUTO):
            kept[key] = child
    return kept


def _price(settings: Effective, facts: Facts, runtime: Runtime) -> Need:
    """What the estimator says of the programs that may run the config: the most of each.

    On a card as nvidia-smi would show it, context and communicators included. Once one
    program does not fit, the others are not asked any more.
    """
    from dsconfig.cost.pricing import price

    capacity = facts.device.memory_bytes if facts.device else None
    most = Need(0, 0, 0)
    for name in runtime.must_fit_on:
        option = price(settings, facts, runtime=name)
        most = Need(
            max(most.device, option.device.visible_bytes),
            max(most.host, option.host.peak_bytes),
            max(most.nvme, option.nvme.peak_bytes),
        )
        if capacity is not None and most.device > capacity:
            break
    return most

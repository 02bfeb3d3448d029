"""All ranks must be about to do the same thing; otherwise they would wait for each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn

from dsconfig import Plan


def check_agreement(plan: Plan | None, model: nn.Module, failure: Exception | None = None) -> None:
    """Compare config, model and plan of all ranks with those of rank 0.

    ``failure``: why this rank has no plan to run; it is for the caller to raise. Collective.
    Raises ValueError on every other rank, naming the first rank that differs, and where, or
    that cannot start, and why.
    """
    mine = _Start(
        failure=None if failure is None else f"{failure}",
        config={} if plan is None else dict(_leaves(plan.effective.config)),
        plan={} if plan is None else {"its digest": plan.digest[:12]},
        model={n: f"{tuple(_shape(p))}{_frozen(p)}" for n, p in model.named_parameters()},
    )
    everyone: list[_Start] = [mine] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if failure is not None:
        return
    for rank, theirs in enumerate(everyone):
        if theirs.failure is not None:
            raise ValueError(f"rank {rank} cannot start: {theirs.failure}")
    for rank, theirs in enumerate(everyone):
        for what in ("config", "model", "plan"):
            differing = _differences(getattr(everyone[0], what), getattr(theirs, what))
            if differing:
                raise ValueError(
                    f"rank {rank} was started with another {what} than rank 0: "
                    f"{'; '.join(differing[:3])}"
                )


@dataclass(frozen=True, slots=True)
class _Start:
    """What one rank is about to do: leaves of the config, parameters by name, the whole plan."""

    failure: str | None
    config: dict[str, str]
    plan: dict[str, str]
    model: dict[str, str]


def _leaves(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        pairs = [_leaves(v, f"{path}.{k}" if path else str(k)) for k, v in value.items()]
        return [leaf for pair in pairs for leaf in pair]
    return [(path, repr(value))]


def _differences(first: dict[str, Any], other: dict[str, Any]) -> list[str]:
    names = dict.fromkeys([*first, *other])
    return [
        f"{name} is {other.get(name, 'absent')}, there {first.get(name, 'absent')}"
        for name in names
        if first.get(name) != other.get(name)
    ]


def _shape(parameter: nn.Parameter) -> Any:
    return getattr(parameter, "ds_shape", parameter.shape)


def _frozen(parameter: nn.Parameter) -> str:
    return "" if parameter.requires_grad else ", frozen"

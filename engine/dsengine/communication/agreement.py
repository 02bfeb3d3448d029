"""All ranks must be about to do the same thing; otherwise they would wait for each other."""

from collections.abc import Mapping
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
    mine = {  # leaves of the config, parameters by name, the whole plan
        "config": {} if plan is None else dict(_leaves(plan.effective.config)),
        "model": {name: _told(parameter) for name, parameter in model.named_parameters()},
        "plan": {} if plan is None else {"its digest": plan.digest[:12]},
    }
    said = None if failure is None else f"{failure}"
    everyone = [(said, mine)] * dist.get_world_size()
    dist.all_gather_object(everyone, (said, mine))
    if failure is not None:
        return
    for rank, (why_not, _) in enumerate(everyone):
        if why_not is not None:
            raise ValueError(f"rank {rank} cannot start: {why_not}")
    _, first = everyone[0]
    for rank, (_, theirs) in enumerate(everyone):
        for what in first:
            differing = _differences(first[what], theirs[what])
            if differing:
                raise ValueError(
                    f"rank {rank} was started with another {what} than rank 0: "
                    f"{'; '.join(differing[:3])}"
                )


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


def _told(parameter: nn.Parameter) -> str:
    shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
    return f"{shape}{'' if parameter.requires_grad else ', frozen'}"

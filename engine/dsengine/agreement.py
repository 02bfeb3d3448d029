"""All ranks must be about to do the same thing; otherwise they would wait for each other."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from dsconfig import Plan


def check_agreement(plan: Plan, model: nn.Module) -> None:
    """Compare config and model of all ranks with those of rank 0.

    Collective. Raises ValueError on every rank, naming the first rank that differs and where.
    """
    mine = {
        "config": dict(_leaves(plan.effective.config)),
        "model": {n: (tuple(_shape(p)), p.requires_grad) for n, p in model.named_parameters()},
    }
    everyone: list[Any] = [mine] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    for rank, theirs in enumerate(everyone):
        for what in ("config", "model"):
            differing = _differences(everyone[0][what], theirs[what])
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


def _shape(parameter: nn.Parameter) -> Any:
    return getattr(parameter, "ds_shape", parameter.shape)

"""Check that all ranks are about to run the same config, model and plan."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn

from dsconfig import Plan


def check_agreement(
    plan: Plan | None, model: nn.Module, failure: Exception | None = None, stage: int = 0
) -> None:
    """Compare config, model and plan of all ranks with those of rank 0. Collective.

    ``failure``: why this rank has no plan; the caller raises it. ``stage``: of a pipeline, whose
    ranks are compared with the first of the same stage. Raises ValueError on every other
    rank, naming the first rank that differs or that failed, and the difference or the cause.
    """
    own = {  # leaves of the config, parameters by name, digest of the plan
        "config": {} if plan is None else dict(_leaves(plan.effective.config)),
        "model": {name: _describe(parameter) for name, parameter in model.named_parameters()},
        "plan": {} if plan is None else {"its digest": plan.digest[:12]},
    }
    cause = None if failure is None else f"{failure}"
    ranks = _gather("initialize()", (cause, stage, own))
    if failure is not None:
        return
    for rank, (cause, *_) in enumerate(ranks):
        if cause is not None:
            raise ValueError(f"rank {rank} cannot start: {cause}")
    first_of: dict[int, int] = {}
    for rank, (_, stage, other) in enumerate(ranks):
        first = first_of.setdefault(stage, rank)
        for part in other:
            against = first if part == "model" else 0
            differing = _differences(ranks[against][2][part], other[part], against)
            if differing:
                raise ValueError(
                    f"rank {rank} has a different {part} than rank {against}: "
                    f"{'; '.join(differing[:3])}"
                )


def check_same_call(call: str) -> None:
    """Raise ValueError on every rank if another makes a different ``call``. Collective.

    Compared before groups of ranks are created: with other groups, ranks would wait for each other.
    """
    _gather(call, None)


def _gather(call: str, value: Any) -> list[Any]:
    """Return the values of all ranks. Raises ValueError if their calls differ."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (call, value))
    calls = [other for other, _ in gathered]
    for rank, other in enumerate(calls):
        if other != calls[0]:
            raise ValueError(
                f"rank {rank} calls {other}, but rank 0 calls {calls[0]}: set the same "
                "sequence_parallel_size on every rank"
            )
    return [value for _, value in gathered]


def _leaves(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        pairs = [_leaves(v, f"{path}.{k}" if path else str(k)) for k, v in value.items()]
        return [leaf for pair in pairs for leaf in pair]
    return [(path, repr(value))]


def _differences(first: dict[str, Any], other: dict[str, Any], rank: int) -> list[str]:
    names = dict.fromkeys([*first, *other])
    return [
        f"{name} is {other.get(name, 'missing')}, on rank {rank} {first.get(name, 'missing')}"
        for name in names
        if first.get(name) != other.get(name)
    ]


def _describe(parameter: nn.Parameter) -> str:
    shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
    return f"{shape}{'' if parameter.requires_grad else ', frozen'}"

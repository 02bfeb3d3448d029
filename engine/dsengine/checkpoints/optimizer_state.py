"""Optimizer state by parameter name, so that it fits any grouping, stage and world size."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.optim import Optimizer

from dsconfig import OPTIMIZER_CLASSES, OPTIMIZERS
from dsengine.checkpoints.errors import CheckpointError, CheckpointMismatchError

_IMPLEMENTATION = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
"""Group entries that say how this process computes, not what: never taken from a file."""

_MOMENTS = {
    each.name.lower(): set(OPTIMIZER_CLASSES[each.in_engine or each.on_device].states)
    for each in OPTIMIZERS.values()
}
"""What an optimizer of a family must find in its state once that is not empty."""


def has_elements(value: object) -> TypeGuard[Tensor]:
    """Whether a state is a moment or the like: a tensor of at least one dimension."""
    return isinstance(value, Tensor) and value.dim() > 0


def name_and_entry(key: str) -> tuple[str, str]:
    """Name and entry of a key; two empty texts for the key of anything else."""
    name, _, entry = key.rpartition(":")
    return (name.removeprefix("optimizer."), entry) if key.startswith("optimizer.") else ("", "")


def _names(parameters: Mapping[str, Tensor], optimizer: Optimizer) -> dict[int, str]:
    names = {id(parameter): name for name, parameter in parameters.items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise CheckpointError(
                    f"the optimizer holds a parameter of shape {tuple(parameter.shape)} that is "
                    "not one of the model's (sharded) parameters; it would train nothing"
                )
    return names


def optimizer_tensors(parameters: Mapping[str, Tensor], optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the moments and the like, by key."""
    names = _names(parameters, optimizer)
    return {
        f"optimizer.{names[id(parameter)]}:{entry}": value.detach()
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
        if has_elements(value)
    }


def optimizer_values(parameters: Mapping[str, Tensor], optimizer: Optimizer) -> dict[str, Any]:
    """Return the rest: groups with their options, and the scalars of each parameter."""
    names = _names(parameters, optimizer)
    scalars = {
        names[id(parameter)]: {
            entry: value.detach().cpu().clone() if isinstance(value, Tensor) else value
            for entry, value in state.items()
            if not has_elements(value)
        }
        for parameter, state in optimizer.state.items()
    }
    groups = [
        {
            "names": [names[id(parameter)] for parameter in group["params"]],
            "options": {k: v for k, v in group.items() if k not in _IMPLEMENTATION},
        }
        for group in optimizer.param_groups
    ]
    return {"type": type(optimizer).__name__, "groups": groups, "scalars": scalars}


def optimizer_targets(
    parameters: Mapping[str, Tensor],
    optimizer: Optimizer,
    saved: Mapping[str, tuple[torch.Size, torch.dtype]],
    room: Callable[[str, str], Tensor | None],
) -> dict[str, Tensor]:
    """Return a tensor to load each saved entry into, by key; the optimizer stays as it is.

    It is the one that the optimizer holds, where that fits, so that nothing is held twice, or that
    of ``room``, where there is one. Of the others, an entry of the parameter's own shape takes its
    sharding; any other (a factored moment) is held whole on every rank.
    """
    held = set(_names(parameters, optimizer).values())
    targets: dict[str, Tensor] = {}
    for key, (shape, dtype) in saved.items():
        name, entry = name_and_entry(key)
        if name not in held:
            continue
        parameter = parameters[name]
        present = optimizer.state.get(parameter, {}).get(entry)
        if isinstance(present, Tensor) and (present.shape, present.dtype) == (shape, dtype):
            targets[key] = present.detach()
        elif shape == parameter.shape:
            there = room(name, entry)
            targets[key] = torch.zeros_like(parameter, dtype=dtype) if there is None else there
        else:
            targets[key] = torch.zeros(shape, dtype=dtype, device=parameter.device)
    return targets


def adopt_optimizer_tensors(
    parameters: Mapping[str, Tensor], optimizer: Optimizer, loaded: Mapping[str, Tensor]
) -> None:
    """Make what was loaded the optimizer's state, in place of all that it held."""
    states: dict[str, dict[str, Any]] = {}
    for key, tensor in loaded.items():
        name, entry = name_and_entry(key)
        states.setdefault(name, {})[entry] = tensor
    for name in _names(parameters, optimizer).values():
        optimizer.state.pop(parameters[name], None)
        if name in states:
            optimizer.state[parameters[name]] = states[name]


def restore_optimizer_values(
    parameters: Mapping[str, Tensor], optimizer: Optimizer, values: Mapping[str, Any]
) -> None:
    """Put back group options and scalars, matching groups by the names they hold."""
    names = _names(parameters, optimizer)
    saved_group = {name: group for group in values["groups"] for name in group["names"]}
    for group in optimizer.param_groups:
        members = [names[id(parameter)] for parameter in group["params"]]
        match = next((saved_group[name] for name in members if name in saved_group), None)
        if match is not None:
            group.update({k: v for k, v in match["options"].items() if k not in _IMPLEMENTATION})
        on_device = group.get("fused") or group.get("capturable")
        for parameter, name in zip(group["params"], members, strict=True):
            for entry, value in values["scalars"].get(name, {}).items():
                if isinstance(value, Tensor):  # a moment too, of what has no dimension
                    is_count = entry == "step" and not on_device
                    value = value.to("cpu" if is_count else parameter.device, copy=True)
                optimizer.state[parameter][entry] = value


def check_same_family(optimizer: Optimizer, values: Mapping[str, Any]) -> None:
    """Raise when the saved state lacks what this optimizer needs to go on."""
    offered = moments_of(values["type"])
    if values["scalars"] and offered is not None:
        check_offered(optimizer, offered, values["type"])


def check_offered(optimizer: Optimizer, offered: AbstractSet[str], whose: str) -> None:
    """Raise when ``offered``, what the state of ``whose`` holds of a parameter, is too little."""
    needed = moments_of(type(optimizer).__name__)
    if needed is None or needed <= offered:
        return
    raise CheckpointMismatchError(
        f"the checkpoint holds the state of {whose}, which lacks "
        f"{sorted(needed - offered)} that {type(optimizer).__name__} needs; use the same optimizer "
        "or load with load_optimizer_states=False"
    )


def moments_of(type_name: str) -> set[str] | None:
    """Return what an optimizer of this name keeps for each element; None of an unknown one."""
    lowered = type_name.lower()
    # "adagrad" does not contain "adam"; longest names are tried first all the same.
    for family in sorted(_MOMENTS, key=len, reverse=True):
        if family in lowered:
            return _MOMENTS[family]
    return None

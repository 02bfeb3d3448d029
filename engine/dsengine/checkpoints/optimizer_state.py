"""Optimizer state by parameter name, independent of grouping, stage and world size."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.optim import Optimizer

from dsconfig import OPTIMIZER_CLASSES, OPTIMIZERS
from dsengine.checkpoints.errors import CheckpointError, CheckpointMismatchError

_IMPLEMENTATION = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
"""Options that select an implementation: never loaded from a file."""

_MOMENTS = {
    declared.name.lower(): set(OPTIMIZER_CLASSES[declared.in_engine or declared.on_device].states)
    for declared in OPTIMIZERS.values()
}
"""States that an optimizer of a family requires unless its state is empty."""


def has_elements(value: object) -> TypeGuard[Tensor]:
    """Whether a state is per element, such as a moment: a tensor of at least one dimension."""
    return isinstance(value, Tensor) and value.dim() > 0


def name_and_entry(key: str) -> tuple[str, str]:
    """Split a key into parameter name and state; ("", "") for other keys."""
    name, _, entry = key.rpartition(":")
    return (name.removeprefix("optimizer."), entry) if key.startswith("optimizer.") else ("", "")


def _names(parameters: Mapping[str, Tensor], optimizer: Optimizer) -> dict[int, str]:
    names = {id(parameter): name for name, parameter in parameters.items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise CheckpointError(
                    f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is "
                    "not one of the model's (sharded) parameters; it would have no effect"
                )
    return names


def optimizer_tensors(parameters: Mapping[str, Tensor], optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the per-element states by key."""
    names = _names(parameters, optimizer)
    return {
        f"optimizer.{names[id(parameter)]}:{entry}": value.detach()
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
        if has_elements(value)
    }


def optimizer_values(parameters: Mapping[str, Tensor], optimizer: Optimizer) -> dict[str, Any]:
    """Return the remaining state: groups with their options, and scalars of each parameter."""
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
    load_target: Callable[[str, str, torch.Size], Tensor | None],
    state_dtype: Callable[[Tensor, torch.dtype], torch.dtype],
) -> dict[str, Tensor]:
    """Return a tensor to load each saved entry into, by key, without changing the optimizer.

    That is the optimizer's current tensor if it fits, to save memory; otherwise that of
    ``load_target``, if any; otherwise a new one of ``state_dtype``, sharded like the parameter if
    shapes are equal, and unsharded if not (a factored moment).
    """
    names = set(_names(parameters, optimizer).values())
    targets: dict[str, Tensor] = {}
    for key, (shape, dtype) in saved.items():
        name, entry = name_and_entry(key)
        if name not in names:
            continue
        parameter = parameters[name]
        dtype = state_dtype(parameter, dtype)
        present = optimizer.state.get(parameter, {}).get(entry)
        if isinstance(present, Tensor) and (present.shape, present.dtype) == (shape, dtype):
            targets[key] = present.detach()
        elif (target := _chosen(load_target, name, entry, shape)) is not None:
            targets[key] = target
        elif shape == parameter.shape:
            targets[key] = torch.zeros_like(parameter, dtype=dtype)
        else:
            targets[key] = torch.zeros(shape, dtype=dtype, device=parameter.device)
    return targets


def _chosen(choose: Callable[[str, str, torch.Size], Tensor | None], *state: Any) -> Tensor | None:
    try:
        return choose(*state)
    except ValueError as error:
        raise CheckpointMismatchError(f"{error}") from None


def adopt_optimizer_tensors(
    parameters: Mapping[str, Tensor], optimizer: Optimizer, loaded: Mapping[str, Tensor]
) -> None:
    """Replace the optimizer's per-element states with the loaded tensors."""
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
    """Restore group options and scalars; groups are matched by their parameters' names."""
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
                if isinstance(value, Tensor):  # also moments of zero-dimensional parameters
                    is_count = entry == "step" and not on_device
                    value = value.to("cpu" if is_count else parameter.device, copy=True)
                optimizer.state[parameter][entry] = value


def check_same_family(
    optimizer: Optimizer, values: Mapping[str, Any], saved: Iterable[str]
) -> None:
    """Raise CheckpointMismatchError if the saved state lacks what this optimizer requires.

    ``saved``: keys of the saved tensors.
    """
    available = {entry for key in saved if (entry := name_and_entry(key)[1])}
    named = available or moments_of(values["type"])
    if values["scalars"] and named is not None:
        check_states(optimizer, named, values["type"])


def check_states(optimizer: Optimizer, saved: AbstractSet[str], saved_by: str) -> None:
    """Raise CheckpointMismatchError if ``saved`` lacks states that the optimizer requires."""
    kind = type(optimizer)
    is_foreign = kind.__module__.startswith("bitsandbytes.")
    required = {"state1"} if is_foreign else moments_of(kind.__name__)
    if required is None or required <= saved:
        return
    raise CheckpointMismatchError(
        f"the checkpoint has the optimizer state of {saved_by}, without "
        f"{sorted(required - saved)}, which {type(optimizer).__name__} requires; use the same "
        "optimizer or load with load_optimizer_states=False"
    )


def moments_of(type_name: str) -> set[str] | None:
    """Return the per-element states of an optimizer class by name; None if unknown."""
    lowered = type_name.lower()
    # Longest names first, although "adagrad" does not contain "adam".
    for family in sorted(_MOMENTS, key=len, reverse=True):
        if family in lowered:
            return _MOMENTS[family]
    return None

"""Rebind an optimizer from a model's parameters to the shards that replaced them.

[Note: why rebinding]
``fully_shard`` replaces every Parameter object. An optimizer built before it would keep updating
tensors that no forward reads, without an error. Each group is rebound by the identity of its
parameters, and existing state is sharded like its parameter.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

Divide = Callable[[str, Tensor], Tensor]
"""Returns this rank's shard, given a parameter's name and a full tensor of its shape."""


def rebind(
    optimizer: Optimizer,
    originals: Mapping[Tensor, str],
    masters: Mapping[str, nn.Parameter],
    divide: Divide,
) -> None:
    """Replace the optimizer's parameters and state in place; groups keep their options.

    Raises ValueError for a parameter that is not in the model, or in two groups.
    """
    seen: set[str] = set()
    step_on_device: set[str] = set()
    for index, group in enumerate(optimizer.param_groups):
        names = [_name(parameter, originals, index) for parameter in group["params"]]
        for name in names:
            if name in seen:
                raise ValueError(f"parameter {name!r} appears twice in the optimizer's groups")
            seen.add(name)
        if group.get("fused") or group.get("capturable"):
            step_on_device.update(names)
        group["params"] = [masters[name] for name in names]
    state = dict(optimizer.state)
    optimizer.state.clear()
    for parameter, entries in state.items():
        name = originals[parameter]
        converted: dict[str, Any] = {}
        for key, value in entries.items():
            if isinstance(value, Tensor):  # the master may have been moved to a GPU
                if value.dim() > 0 and value.shape == parameter.shape:
                    value = divide(name, value)
                if value.dim() > 0 or name in step_on_device:
                    value = value.to(masters[name].device)
            converted[key] = value
        optimizer.state[masters[name]] = converted


def _name(parameter: Tensor, originals: Mapping[Tensor, str], group: int) -> str:
    name = originals.get(parameter)
    if name is None:
        raise ValueError(
            f"group {group} of the optimizer has a parameter of shape {tuple(parameter.shape)} "
            "that is not in the model: build the optimizer from the parameters of the model "
            "passed to initialize(), after the model is complete"
        )
    return name


def masters_of_groups(
    groups: list[dict[str, Any]],
    originals: Mapping[Tensor, str],
    masters: Mapping[str, nn.Parameter],
) -> list[dict[str, Any]]:
    """Return ``groups`` with the model's parameters replaced by the masters."""
    return [
        {**group, "params": [masters[_name(p, originals, index)] for p in group["params"]]}
        for index, group in enumerate(groups)
    ]

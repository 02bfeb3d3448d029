"""Move an optimizer from a model's parameters to the shards that replaced them.

[Note: why re-binding]
``fully_shard`` replaces every Parameter object. An optimizer built before it would go on
updating tensors that no forward reads: training nothing, without an error. Each group is
re-bound by the identity of its parameters, and state the optimizer already has is divided in
the same way as its parameter.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

Divide = Callable[[str, Tensor], Tensor]
"""From a parameter's name and a whole tensor of its shape to what is kept here."""


def rebind(
    optimizer: Optimizer,
    originals: Mapping[Tensor, str],
    masters: Mapping[str, nn.Parameter],
    divide: Divide,
) -> None:
    """Exchange the optimizer's parameters and state in place; groups keep their options.

    Raises ValueError for a parameter that is not the model's, or stands in two groups.
    """
    seen: set[str] = set()
    counted_on_device: set[str] = set()
    for index, group in enumerate(optimizer.param_groups):
        names = [_name(parameter, originals, index) for parameter in group["params"]]
        for name in names:
            if name in seen:
                raise ValueError(f"parameter {name!r} stands twice in the optimizer's groups")
            seen.add(name)
        if group.get("fused") or group.get("capturable"):
            counted_on_device.update(names)
        group["params"] = [masters[name] for name in names]
    state = dict(optimizer.state)
    optimizer.state.clear()
    for parameter, entries in state.items():
        name = originals[parameter]
        kept: dict[str, Any] = {}
        for key, value in entries.items():
            if isinstance(value, Tensor):  # the master may have come to a GPU since
                if value.dim() > 0 and value.shape == parameter.shape:
                    value = divide(name, value)
                if value.dim() > 0 or name in counted_on_device:
                    value = value.to(masters[name].device)
            kept[key] = value
        optimizer.state[masters[name]] = kept


def _name(parameter: Tensor, originals: Mapping[Tensor, str], group: int) -> str:
    name = originals.get(parameter)
    if name is None:
        raise ValueError(
            f"group {group} of the optimizer holds a parameter of shape "
            f"{tuple(parameter.shape)} that the model does not have: build the optimizer from "
            "the parameters of the model given to initialize(), after the model is complete"
        )
    return name


def masters_of_groups(
    groups: list[dict[str, Any]],
    originals: Mapping[Tensor, str],
    masters: Mapping[str, nn.Parameter],
) -> list[dict[str, Any]]:
    """Return ``groups`` with the model's parameters exchanged for the masters."""
    return [
        {**group, "params": [masters[_name(p, originals, index)] for p in group["params"]]}
        for index, group in enumerate(groups)
    ]

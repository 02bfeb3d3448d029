"""The optimizer of a run: built by the name in a config, or the script's, rebound to the shards.

[Note: why rebinding]
``fully_shard`` replaces every Parameter object. An optimizer built before it would keep updating
tensors that no forward reads, without an error. Each group is rebound by the identity of its
parameters, and existing state is sharded like its parameter.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dsconfig import OPTIMIZER_CLASSES, OPTIMIZERS, optimizer_type
from dsengine.optimizers import adam
from dsengine.optimizers.lamb import Lamb
from dsengine.optimizers.lion import Lion
from dsengine.optimizers.muon import MuonWithAdam

Groups = list[dict[str, Any]]

DEEPSPEED_CLASS = "_deepspeed_class"
"""The attribute of an optimizer with the class that DeepSpeed would have built."""
OWN = {"Lamb": Lamb, "Lion": Lion}
"""Optimizers that PyTorch does not have, except Muon."""
NOT_OPTIONS = (
    "torch_adam",
    "adam_w_mode",
    "adamw_mode",
    "bias_correction",
    "fp32_optimizer_states",
    "set_grad_none",
)
"""Parameters of DeepSpeed's classes that select an implementation or have no effect here."""


def build_optimizer(
    name: str,
    params: Mapping[str, Any],
    groups: Groups,
    *,
    fuse: bool = True,
    offloaded: bool = False,
) -> Optimizer:
    """Return the optimizer ``name`` over ``groups``; ``fuse`` allows fused kernels.

    ``offloaded``: whether DeepSpeed would have built its CPU class. Muon's groups are those of
    ``split_for_muon``.

    As in DeepSpeed, ``Adam`` is AdamW unless ``adam_w_mode`` is false, neither decays weights by
    default, and ``torch_adam`` selects torch's class with its own defaults. Fused kernels are used
    if PyTorch has them and the parameters do not choose otherwise. Raises ValueError for an unknown
    name or parameter.
    """
    if is_muon(name):
        return MuonWithAdam(groups, adam_w_mode=bool(params.get("adam_w_mode", True)))
    kind = _class(name, params)
    corrects = params.get(adam.SETTING, True)
    if not corrects:
        kind = {torch.optim.Adam: adam.Adam, torch.optim.AdamW: adam.AdamW}.get(kind, kind)
    options = {key: value for key, value in params.items() if key not in NOT_OPTIONS}
    if issubclass(kind, torch.optim.AdamW) and not params.get("torch_adam", False):
        options.setdefault("weight_decay", 0.0)  # torch's own default is 0.01
    if "max_grad_norm" in options:
        raise ValueError(
            "optimizer.params.max_grad_norm is not an optimizer setting: use gradient_clipping"
        )
    if fuse and _may_fuse(kind, options, groups):
        options["fused"] = True
    try:
        optimizer = kind(groups, **options)
    except TypeError as error:
        raise ValueError(f"optimizer.params are invalid for {kind.__name__}: {error}") from error
    if not corrects:
        adam.without_correction(optimizer)
    if (known := optimizer_type(name)) is not None:
        setattr(optimizer, DEEPSPEED_CLASS, known.class_in_deepspeed(params, offloaded=offloaded))
    return optimizer


def is_muon(name: str) -> bool:
    return name.lower() == "muon"


def _class(name: str, params: Mapping[str, Any]) -> type[Optimizer]:
    known = optimizer_type(name) or _TYPE_OF_CLASS.get(name.lower())
    # A class that is not in the table may be from a newer torch.
    target = known.class_in_engine(params) if known else f"torch.{name}"
    bare = (target or "").removeprefix("torch.")
    kind = OWN.get(bare) or getattr(torch.optim, bare, None)
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)) or kind is Optimizer:
        raise ValueError(
            f"optimizer.type {name!r} is not supplied by PyTorch: use AdamW, Adam, SGD, or "
            "another class name of torch.optim, or pass an optimizer to initialize()"
        )
    return kind


_TYPE_OF_CLASS = {
    name.lower(): declared
    for declared in reversed([*OPTIMIZERS.values()])
    for name in (declared.on_device, declared.on_host)
}
"""Types by the class that DeepSpeed builds: FusedAdam is Adam."""


def _may_fuse(kind: type[Optimizer], options: Mapping[str, Any], groups: Groups) -> bool:
    if {"fused", "foreach", "differentiable"} & options.keys():
        return False
    known = OPTIMIZER_CLASSES.get(f"torch.{kind.__name__}")
    return known is not None and all(map(known.is_torch_fused_on, device_types(groups)))


def device_types(groups: Groups) -> set[str]:
    """Return the device types of the parameters: ``cpu``, ``cuda`` ..."""
    return {parameter.device.type for group in groups for parameter in group["params"]}


def as_groups(parameters: Iterable[Any], *, keeps_empty: bool = False) -> Groups:
    """Convert the parameters that a script passes to the form of ``param_groups``.

    Groups without parameters are dropped, unless ``keeps_empty``: then groups of pipeline stages
    have the same positions, to which schedules refer. (name, parameter) pairs lose the name.
    """
    items = list(parameters)
    if not items or not isinstance(items[0], dict):
        items = [{"params": items}]
    groups = [dict(group, params=_plain(group["params"])) for group in items]
    return [group for group in groups if group["params"] or keeps_empty]


def _plain(parameters: Any) -> list[nn.Parameter]:
    if isinstance(parameters, torch.Tensor):
        return [parameters]  # type: ignore[list-item]
    return [item[1] if isinstance(item, tuple) else item for item in parameters]


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

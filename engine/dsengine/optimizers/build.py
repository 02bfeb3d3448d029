"""Optimizers by the name a config gives them."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dsconfig import OPTIMIZER_CLASSES, OPTIMIZERS, optimizer_type
from dsengine.optimizers.lion import Lion
from dsengine.optimizers.muon import MuonWithAdam

Groups = list[dict[str, Any]]

STANDS_FOR = "_stands_for"
"""The attribute of an optimizer that names the class which DeepSpeed would have built for it."""
OWN = {"Lion": Lion}
"""What PyTorch does not have, beside Muon."""
NOT_OPTIONS = (
    "torch_adam",
    "adam_w_mode",
    "adamw_mode",
    "bias_correction",
    "fp32_optimizer_states",
    "set_grad_none",
)
"""Parameters of DeepSpeed's own classes that choose an implementation or do nothing here."""


def build_optimizer(
    name: str,
    params: Mapping[str, Any],
    groups: Groups,
    *,
    fuse: bool = True,
    offloaded: bool = False,
) -> Optimizer:
    """Return the optimizer ``name`` over ``groups``; ``fuse`` allows fused kernels.

    ``offloaded``: DeepSpeed would have built its class for the host. The groups of Muon are those
    of ``split_for_muon``.

    ``Adam`` is AdamW unless ``adam_w_mode`` is false, and neither decays weights unless told to,
    as in DeepSpeed; ``torch_adam`` means torch's class with its own defaults. Fused kernels are
    used where PyTorch has them and the parameters do not choose otherwise. Raises ValueError
    for an unknown name or parameter.
    """
    if is_muon(name):
        return MuonWithAdam(groups, adam_w_mode=bool(params.get("adam_w_mode", True)))
    kind = _class(name, params)
    options = {key: value for key, value in params.items() if key not in NOT_OPTIONS}
    if kind is torch.optim.AdamW and not params.get("torch_adam", False):
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
        raise ValueError(f"optimizer.params does not suit {kind.__name__}: {error}") from error
    if (known := optimizer_type(name)) is not None:
        setattr(optimizer, STANDS_FOR, known.class_in_deepspeed(params, offloaded=offloaded))
    return optimizer


def is_muon(name: str) -> bool:
    return name.lower() == "muon"


def _class(name: str, params: Mapping[str, Any]) -> type[Optimizer]:
    known = optimizer_type(name) or _TYPE_OF_CLASS.get(name.lower())
    # A class that the table does not have may be of a newer torch.
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
    name.lower(): each
    for each in reversed([*OPTIMIZERS.values()])
    for name in (each.on_device, each.on_host)
}
"""Types by the classes that DeepSpeed builds for them: FusedAdam is Adam."""


def _may_fuse(kind: type[Optimizer], options: Mapping[str, Any], groups: Groups) -> bool:
    if {"fused", "foreach", "differentiable"} & options.keys():
        return False
    known = OPTIMIZER_CLASSES.get(f"torch.{kind.__name__}")
    return known is not None and all(map(known.is_torch_fused_on, device_types(groups)))


def device_types(groups: Groups) -> set[str]:
    """Where the parameters are: ``cpu``, ``cuda`` ..."""
    return {each.device.type for group in groups for each in group["params"]}


def as_groups(parameters: Iterable[Any]) -> Groups:
    """Bring what a script passes as parameters into the form of ``param_groups``.

    Groups without parameters are dropped; (name, parameter) pairs lose the name.
    """
    given = list(parameters)
    if not given or not isinstance(given[0], dict):
        given = [{"params": given}]
    groups = [dict(group, params=_plain(group["params"])) for group in given]
    return [group for group in groups if group["params"]]


def _plain(parameters: Any) -> list[nn.Parameter]:
    if isinstance(parameters, torch.Tensor):
        return [parameters]  # type: ignore[list-item]
    return [each[1] if isinstance(each, tuple) else each for each in parameters]

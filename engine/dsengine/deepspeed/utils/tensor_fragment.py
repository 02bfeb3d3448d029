"""One parameter's fp32 master, gradient and moments, whole, whoever holds which part of them.

``param`` is what ``engine.module.named_parameters()`` yields, at any stage. All are collective:
every rank asks for the same parameters in the same order. None is returned for a parameter that
no engine holds, and for what does not exist yet.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsengine.parameters.names import clean_name
from dsengine.parameters.shards import whole_of
from dsengine.sharding.zero.shown import shard_of
from dsengine.torch_private import as_shard, local_part

if TYPE_CHECKING:
    from dsengine.loop.engine import Engine


def safe_get_full_fp32_param(param: nn.Parameter) -> Tensor | None:
    """Return a copy of the master: whole, fp32, on the device."""
    found = _find(param)
    if found is None:
        return None
    engine, name = found
    with engine.states_in_reach():
        return _whole(engine, name, engine.stepped_part(name))


def safe_get_full_optimizer_state(param: nn.Parameter, optim_state_key: str) -> Tensor | None:
    """Return a copy of a state of the optimizer (``exp_avg``): whole, fp32, on the device.

    Raises KeyError, with the names there are, when the optimizer keeps another kind of state.
    """
    found = _find(param)
    if found is None:
        return None
    engine, name = found
    with engine.states_in_reach():
        state = _states(engine, name)
        return _whole(engine, name, _state(state, optim_state_key)) if state else None


def safe_get_full_grad(param: nn.Parameter) -> Tensor | None:
    """Return a copy of the gradient between ``backward`` and ``step``: whole, not scaled.

    It is the mean over ranks and the sum over the window so far, in fp32. Where gradients are not
    reduced yet (below stage 2 before the end of a window, in ``no_sync`` and
    ``coalesce_grad_reduction``), it is this rank's own sum, in the dtype of that; no other rank
    has to ask then.
    """
    found = _find(param)
    if found is None:
        return None
    engine, name = found
    unreduced = engine.sharding.unreduced()
    if unreduced is not None:
        held = unreduced.get(name)
        return None if held is None else held.detach() / engine.loss_scaler.scale
    gradient = dict(engine.sharding.gradients()).get(name)
    if gradient is None:
        return None
    return _whole(engine, name, gradient).div_(engine.loss_scaler.scale)


@torch.no_grad()
def safe_set_full_fp32_param(param: nn.Parameter, value: Tensor) -> None:
    """Give master and parameter the whole ``value``; nothing without an engine."""
    found = _find(param)
    if found is not None:
        engine, name = found
        with engine.states_in_reach():
            targets = engine.sharding.masters[name], engine.stepped_part(name)
            _copy_part(engine, name, value, *targets)
        engine.note_written(name)
        engine.sharding.after_update()


@torch.no_grad()
def safe_set_full_optimizer_state(param: nn.Parameter, value: Tensor, optim_state_key: str) -> None:
    """Give a state of the optimizer the whole ``value``. Raises KeyError for one it has not."""
    found = _find(param)
    if found is None or found[0].optimizer is None:
        return
    engine, name = found
    with engine.states_in_reach():
        _copy_part(engine, name, value, _state(_states(engine, name), optim_state_key))


@torch.no_grad()
def safe_set_full_grad(param: nn.Parameter, value: Tensor) -> None:
    """Give the reduced gradient the whole ``value``, which is without the loss scale.

    Raises ValueError where there is no reduced gradient: before ``backward`` ends a window.
    """
    found = _find(param)
    if found is None:
        return
    engine, name = found
    gradient = dict(engine.sharding.gradients()).get(name)
    if gradient is None:
        raise ValueError(f"{name} has no reduced gradient to set: call it after backward()")
    _copy_part(engine, name, value * engine.loss_scaler.scale, gradient)


def safe_update_full_grad_vectorized(
    param_list: Sequence[nn.Parameter], update_func: Callable[[Tensor, nn.Parameter], Tensor]
) -> None:
    """Replace each reduced gradient by ``update_func(gradient, param)``."""
    for param in param_list:
        gradient = safe_get_full_grad(param)
        if gradient is not None:
            safe_set_full_grad(param, update_func(gradient, param))


def safe_get_local_fp32_param(param: nn.Parameter) -> Tensor | None:
    """Return a copy of this rank's part of the master, fp32."""
    found = _find(param)
    if found is None:
        return None
    engine, name = found
    with engine.states_in_reach():
        return local_part(engine.stepped_part(name)).detach().to(torch.float32, copy=True)


def safe_get_local_optimizer_state(param: nn.Parameter, optim_state_key: str) -> Tensor | None:
    """Return a copy of this rank's part of a state of the optimizer."""
    found = _find(param)
    if found is None:
        return None
    engine, name = found
    with engine.states_in_reach():
        state = _states(engine, name).get(optim_state_key)
        return None if state is None else local_part(state).clone()


def safe_get_local_grad(param: nn.Parameter) -> Tensor | None:
    """Return a copy of this rank's part of the reduced gradient, without the loss scale."""
    found = _find(param)
    gradient = None if found is None else dict(found[0].sharding.gradients()).get(found[1])
    if found is None or gradient is None:
        return None
    return gradient.float() / found[0].loss_scaler.scale


@torch.no_grad()
def safe_set_local_fp32_param(param: nn.Parameter, value: Tensor) -> None:
    """Give this rank's part of the master ``value``. Every rank sets its own."""
    found = _find(param)
    if found is not None:
        engine, name = found
        with engine.states_in_reach():
            for target in (engine.sharding.masters[name], engine.stepped_part(name)):
                local = local_part(target)
                local.copy_(value.view(local.shape))
        engine.note_written(name)
        engine.sharding.after_update()


@torch.no_grad()
def safe_set_local_optimizer_state(
    param: nn.Parameter, value: Tensor, optim_state_key: str
) -> None:
    """Give this rank's part of a state of the optimizer ``value``. Raises KeyError as above."""
    found = _find(param)
    if found is not None and found[0].optimizer is not None:
        engine, name = found
        with engine.states_in_reach():
            local = local_part(_state(_states(engine, name), optim_state_key))
            local.copy_(value.view(local.shape))


@torch.no_grad()
def safe_set_local_grad(param: nn.Parameter, value: Tensor) -> None:
    """Give this rank's part of the reduced gradient ``value``, without the loss scale."""
    found = _find(param)
    gradient = None if found is None else dict(found[0].sharding.gradients()).get(found[1])
    if found is not None and gradient is not None:
        gradient.copy_(value.view(gradient.shape) * found[0].loss_scaler.scale)


def _copy_part(engine: "Engine", name: str, whole: Tensor, *targets: Tensor) -> None:
    """Copy what this rank keeps of ``whole``, shaped as master ``name``, into the targets."""
    master = engine.sharding.masters[name]
    part = local_part(engine.sharding.divide(name, whole.to(master.device)))
    for target in targets:
        local_part(target).copy_(part)


def _find(param: nn.Parameter) -> "tuple[Engine, str] | None":
    """The engine that trains ``param``, and the name of its master."""
    from dsengine.loop.engine import living

    for engine in living:
        if not engine.sharding.has_model:
            continue  # another engine has taken it over
        for name, each in engine.module.named_parameters():
            if each is param:
                return engine, engine.sharding.aliases[clean_name(name)]
        for name, master in engine.sharding.masters.items():
            if master is shard_of(param):  # what is whole in the module just now
                return engine, name
    return None


def _states(engine: "Engine", name: str) -> Mapping[str, Any]:
    """This rank's parts of what the optimizer keeps of a master; nothing before its first step."""
    optimizer = engine.optimizer
    return {} if optimizer is None else optimizer.state.get(engine.stepped_part(name)) or {}


def _state(states: Mapping[str, Any], key: str) -> Tensor:
    if key not in states:
        raise KeyError(f"{key!r} is no state of the optimizer: {', '.join(states)}")
    return states[key]


@torch.no_grad()
def _whole(engine: "Engine", name: str, part: Tensor) -> Tensor:
    """Put a tensor together of which each rank has what it has of master ``name``."""
    master = engine.sharding.masters[name]
    part = part.detach()
    is_part = part.shape == local_part(master).shape and not isinstance(part, DTensor)
    if isinstance(master, DTensor) and is_part:
        part = as_shard(part, master)
    whole = whole_of(part) if isinstance(part, DTensor) else part
    return whole.to(engine.device, torch.float32, copy=True)


__all__ = [
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_get_local_fp32_param",
    "safe_get_local_grad",
    "safe_get_local_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_grad",
    "safe_set_local_optimizer_state",
    "safe_update_full_grad_vectorized",
]

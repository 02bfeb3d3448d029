"""One parameter's fp32 master, gradient and moments, whole, whoever holds which part of them.

``param`` is what ``engine.module.named_parameters()`` yields, at any stage. All are collective:
every rank asks for the same parameters in the same order. None is returned for a parameter that
no engine holds, and for what does not exist yet.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsengine.parameters.names import clean_name
from dsengine.parameters.shards import full_tensor_of
from dsengine.sharding.zero.dtype_view import shard_of
from dsengine.torch_private import as_shard, local_part

if TYPE_CHECKING:
    from dsengine.loop.engine import Engine


class _Held(NamedTuple):
    """The engine that trains a parameter, and the name of its master."""

    engine: "Engine"
    name: str

    @property
    def master(self) -> nn.Parameter:
        return self.engine.sharding.masters[self.name]

    @property
    def stepped(self) -> Tensor:
        return self.engine.optimizer_parameter(self.name)

    def gradient(self) -> Tensor | None:
        """This rank's part of what is reduced."""
        return dict(self.engine.sharding.gradients()).get(self.name)

    def states(self) -> Mapping[str, Any]:
        """This rank's parts of what the optimizer keeps; nothing before its first step."""
        optimizer = self.engine.optimizer
        return {} if optimizer is None else optimizer.state.get(self.stepped) or {}

    def state(self, key: str) -> Tensor:
        states = self.states()
        if key not in states:
            raise KeyError(f"{key!r} is no state of the optimizer: {', '.join(states)}")
        return states[key]

    @torch.no_grad()
    def whole(self, part: Tensor) -> Tensor:
        """Put a tensor together of which each rank has what it has of the master."""
        part = part.detach()
        is_part = part.shape == local_part(self.master).shape and not isinstance(part, DTensor)
        if isinstance(self.master, DTensor) and is_part:
            part = as_shard(part, self.master)
        whole = full_tensor_of(part) if isinstance(part, DTensor) else part
        return whole.to(self.engine.device, torch.float32, copy=True)

    def divided(self, whole: Tensor) -> Tensor:
        """What this rank keeps of a tensor that is shaped as the master."""
        return local_part(self.engine.sharding.shard(self.name, whole.to(self.master.device)))

    def write_master(self, part: Tensor) -> None:
        with self.engine.states_materialized():
            for target in map(local_part, (self.master, self.stepped)):
                target.copy_(part.view(target.shape))
        self.engine.mark_in_sync(self.name)
        self.engine.sharding.after_update()


def _find(param: nn.Parameter) -> _Held | None:
    from dsengine.loop.engine import active_engines

    for engine in active_engines:
        if not engine.sharding.has_model:
            continue  # another engine has taken it over
        for name, each in engine.module.named_parameters():
            if each is param:
                return _Held(engine, engine.sharding.aliases[clean_name(name)])
        for name, master in engine.sharding.masters.items():
            if master is shard_of(param):  # what is whole in the module just now
                return _Held(engine, name)
    return None


def safe_get_full_fp32_param(param: nn.Parameter) -> Tensor | None:
    """Return a copy of the master: whole, fp32, on the device."""
    if (held := _find(param)) is None:
        return None
    with held.engine.states_materialized():
        return held.whole(held.stepped)


def safe_get_full_optimizer_state(param: nn.Parameter, optim_state_key: str) -> Tensor | None:
    """Return a copy of a state of the optimizer (``exp_avg``): whole, fp32, on the device.

    Raises KeyError, with the names there are, when the optimizer keeps another kind of state.
    """
    if (held := _find(param)) is None:
        return None
    with held.engine.states_materialized():
        return held.whole(held.state(optim_state_key)) if held.states() else None


def safe_get_full_grad(param: nn.Parameter) -> Tensor | None:
    """Return a copy of the gradient between ``backward`` and ``step``: whole, not scaled.

    It is the mean over ranks and the sum over the window so far, in fp32. Where gradients are not
    reduced yet (below stage 2 before the end of a window, in ``no_sync`` and
    ``coalesce_grad_reduction``), it is this rank's own sum, in the dtype of that; no other rank
    has to ask then.
    """
    if (held := _find(param)) is None:
        return None
    scale, unreduced = held.engine.loss_scaler.scale, held.engine.sharding.unreduced()
    if unreduced is not None:
        own = unreduced.get(held.name)
        return None if own is None else own.detach() / scale
    gradient = held.gradient()
    return None if gradient is None else held.whole(gradient).div_(scale)


@torch.no_grad()
def safe_set_full_fp32_param(param: nn.Parameter, value: Tensor) -> None:
    """Give master and parameter the whole ``value``; nothing without an engine."""
    if (held := _find(param)) is not None:
        held.write_master(held.divided(value))


@torch.no_grad()
def safe_set_full_optimizer_state(param: nn.Parameter, value: Tensor, optim_state_key: str) -> None:
    """Give a state of the optimizer the whole ``value``. Raises KeyError for one it has not."""
    held = _find(param)
    if held is not None and held.engine.optimizer is not None:
        with held.engine.states_materialized():
            local_part(held.state(optim_state_key)).copy_(held.divided(value))


@torch.no_grad()
def safe_set_full_grad(param: nn.Parameter, value: Tensor) -> None:
    """Give the reduced gradient the whole ``value``, which is without the loss scale.

    Raises ValueError where there is no reduced gradient: before ``backward`` ends a window.
    """
    if (held := _find(param)) is None:
        return
    gradient = held.gradient()
    if gradient is None:
        raise ValueError(f"{held.name} has no reduced gradient to set: call it after backward()")
    gradient.copy_(held.divided(value * held.engine.loss_scaler.scale))


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
    if (held := _find(param)) is None:
        return None
    with held.engine.states_materialized():
        return local_part(held.stepped).detach().to(torch.float32, copy=True)


def safe_get_local_optimizer_state(param: nn.Parameter, optim_state_key: str) -> Tensor | None:
    """Return a copy of this rank's part of a state of the optimizer."""
    if (held := _find(param)) is None:
        return None
    with held.engine.states_materialized():
        state = held.states().get(optim_state_key)
        return None if state is None else local_part(state).clone()


def safe_get_local_grad(param: nn.Parameter) -> Tensor | None:
    """Return a copy of this rank's part of the reduced gradient, without the loss scale."""
    held = _find(param)
    if held is None or (gradient := held.gradient()) is None:
        return None
    return gradient.float() / held.engine.loss_scaler.scale


@torch.no_grad()
def safe_set_local_fp32_param(param: nn.Parameter, value: Tensor) -> None:
    """Give this rank's part of the master ``value``. Every rank sets its own."""
    if (held := _find(param)) is not None:
        held.write_master(value)


@torch.no_grad()
def safe_set_local_optimizer_state(
    param: nn.Parameter, value: Tensor, optim_state_key: str
) -> None:
    """Give this rank's part of a state of the optimizer ``value``. Raises KeyError as above."""
    held = _find(param)
    if held is not None and held.engine.optimizer is not None:
        with held.engine.states_materialized():
            local = local_part(held.state(optim_state_key))
            local.copy_(value.view(local.shape))


@torch.no_grad()
def safe_set_local_grad(param: nn.Parameter, value: Tensor) -> None:
    """Give this rank's part of the reduced gradient ``value``, without the loss scale."""
    held = _find(param)
    if held is not None and (gradient := held.gradient()) is not None:
        gradient.copy_(value.view(gradient.shape) * held.engine.loss_scaler.scale)


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

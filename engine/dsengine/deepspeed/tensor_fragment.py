"""Full or local fp32 master, gradient and optimizer states of one parameter.

``param`` is one of ``engine.module.named_parameters()``, at any stage. All functions are
collective: every rank must call them for the same parameters in the same order. They return None
for a parameter without an engine, and for values that do not exist yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsengine.parameters.names import clean_name
from dsengine.parameters.shards import full_tensor_of
from dsengine.sharding.zero.dtype_view import shard_of
from dsengine.torch_private.tensors import as_shard, local_part

if TYPE_CHECKING:
    from dsengine.loop.engine import Engine


@dataclass
class fragment_address:
    """Elements of a flat buffer that belong to one parameter."""

    numel: int
    start: int


class _TrainedParameter(NamedTuple):
    """An engine and the name of one of its masters."""

    engine: "Engine"
    name: str

    @property
    def master(self) -> nn.Parameter:
        return self.engine.sharding.masters[self.name]

    @property
    def stepped(self) -> Tensor:
        """What the optimizer steps: the master or this rank's shard."""
        return self.engine.binding.shards.get(self.name, self.master)

    def gradient(self) -> Tensor | None:
        """Return this rank's shard of the reduced gradient."""
        return dict(self.engine._gradients.reduced()).get(self.name)

    def states(self) -> Mapping[str, Any]:
        """Return this rank's shards of the optimizer states; {} before the first step."""
        optimizer = self.engine.optimizer
        return {} if optimizer is None else optimizer.state.get(self.stepped) or {}

    def state(self, key: str) -> Tensor:
        states = self.states()
        if key not in states:
            raise KeyError(f"the optimizer has no state {key!r}: {', '.join(states)}")
        return states[key]

    @torch.no_grad()
    def full(self, shard: Tensor) -> Tensor:
        """Gather the full fp32 tensor from all ranks' shards."""
        shard = shard.detach()
        is_local = shard.shape == local_part(self.master).shape and not isinstance(shard, DTensor)
        if isinstance(self.master, DTensor) and is_local:
            shard = as_shard(shard, self.master)
        full = full_tensor_of(shard) if isinstance(shard, DTensor) else shard
        return full.to(self.engine.device, torch.float32, copy=True)

    def local(self, full: Tensor) -> Tensor:
        """Return this rank's shard of a tensor that has the master's shape."""
        return local_part(self.engine.sharding.shard(self.name, full.to(self.master.device)))

    def write_master(self, shard: Tensor) -> None:
        with self.engine.binding.materialized():
            for target in map(local_part, (self.master, self.stepped)):
                target.copy_(shard.view(target.shape))
        self.engine.binding.mark_in_sync(self.name)
        self.engine.sharding.after_update()


def _find(param: nn.Parameter) -> _TrainedParameter | None:
    from dsengine.loop.engine import active_engines

    for engine in active_engines:
        if not engine.sharding.has_model:
            continue  # taken over by another engine
        for name, candidate in engine.module.named_parameters():
            if candidate is param:
                return _TrainedParameter(engine, engine.sharding.aliases[clean_name(name)])
        for name, master in engine.sharding.masters.items():
            if master is shard_of(param):  # currently unsharded in the module
                return _TrainedParameter(engine, name)
    return None


def safe_get_full_fp32_param(param: nn.Parameter) -> Tensor | None:
    """Return a copy of the full fp32 master on the device."""
    if (trained := _find(param)) is None:
        return None
    with trained.engine.binding.materialized():
        return trained.full(trained.stepped)


def safe_get_full_optimizer_state(param: nn.Parameter, optim_state_key: str) -> Tensor | None:
    """Return a copy of a full optimizer state (such as ``exp_avg``) in fp32 on the device.

    Raises KeyError, with the available names, if the optimizer has no such state.
    """
    if (trained := _find(param)) is None:
        return None
    with trained.engine.binding.materialized():
        return trained.full(trained.state(optim_state_key)) if trained.states() else None


def safe_get_full_grad(param: nn.Parameter) -> Tensor | None:
    """Return a copy of the full, unscaled gradient between ``backward`` and ``step``.

    In fp32, averaged over ranks and summed over the micro steps so far. If gradients are not
    reduced yet (below stage 2 before a boundary, in ``no_sync`` and ``coalesce_grad_reduction``),
    it is this rank's own sum in its own dtype, and the call is not collective.
    """
    if (trained := _find(param)) is None:
        return None
    scale, unreduced = trained.engine.loss_scaler.scale, trained.engine._gradients.unreduced()
    if unreduced is not None:
        own = unreduced.get(trained.name)
        return None if own is None else own.detach() / scale
    gradient = trained.gradient()
    return None if gradient is None else trained.full(gradient).div_(scale)


@torch.no_grad()
def safe_set_full_fp32_param(param: nn.Parameter, value: Tensor) -> None:
    """Set master and parameter to the full ``value``; does nothing without an engine."""
    if (trained := _find(param)) is not None:
        trained.write_master(trained.local(value))


@torch.no_grad()
def safe_set_full_optimizer_state(param: nn.Parameter, value: Tensor, optim_state_key: str) -> None:
    """Set an optimizer state to the full ``value``. Raises KeyError if there is no such state."""
    trained = _find(param)
    if trained is not None and trained.engine.optimizer is not None:
        with trained.engine.binding.materialized():
            local_part(trained.state(optim_state_key)).copy_(trained.local(value))


@torch.no_grad()
def safe_set_full_grad(param: nn.Parameter, value: Tensor) -> None:
    """Set the reduced gradient to the full, unscaled ``value``.

    Raises ValueError if there is no reduced gradient, before ``backward`` reaches a boundary.
    """
    if (trained := _find(param)) is None:
        return
    gradient = trained.gradient()
    if gradient is None:
        raise ValueError(f"{trained.name} has no reduced gradient: call this after backward()")
    gradient.copy_(trained.local(value * trained.engine.loss_scaler.scale))


def safe_update_full_grad_vectorized(
    param_list: Sequence[nn.Parameter], update_func: Callable[[Tensor, nn.Parameter], Tensor]
) -> None:
    """Replace each reduced gradient with ``update_func(gradient, param)``."""
    for param in param_list:
        gradient = safe_get_full_grad(param)
        if gradient is not None:
            safe_set_full_grad(param, update_func(gradient, param))


def safe_get_local_fp32_param(param: nn.Parameter) -> Tensor | None:
    """Return a copy of this rank's shard of the fp32 master."""
    if (trained := _find(param)) is None:
        return None
    with trained.engine.binding.materialized():
        return local_part(trained.stepped).detach().to(torch.float32, copy=True)


def safe_get_local_optimizer_state(param: nn.Parameter, optim_state_key: str) -> Tensor | None:
    """Return a copy of this rank's shard of an optimizer state."""
    if (trained := _find(param)) is None:
        return None
    with trained.engine.binding.materialized():
        state = trained.states().get(optim_state_key)
        return None if state is None else local_part(state).clone()


def safe_get_local_grad(param: nn.Parameter) -> Tensor | None:
    """Return a copy of this rank's shard of the reduced, unscaled gradient."""
    trained = _find(param)
    if trained is None or (gradient := trained.gradient()) is None:
        return None
    return gradient.float() / trained.engine.loss_scaler.scale


@torch.no_grad()
def safe_set_local_fp32_param(param: nn.Parameter, value: Tensor) -> None:
    """Set this rank's shard of the master. Every rank sets its own."""
    if (trained := _find(param)) is not None:
        trained.write_master(value)


@torch.no_grad()
def safe_set_local_optimizer_state(
    param: nn.Parameter, value: Tensor, optim_state_key: str
) -> None:
    """Set this rank's shard of an optimizer state. Raises KeyError if there is no such state."""
    trained = _find(param)
    if trained is not None and trained.engine.optimizer is not None:
        with trained.engine.binding.materialized():
            local = local_part(trained.state(optim_state_key))
            local.copy_(value.view(local.shape))


@torch.no_grad()
def safe_set_local_grad(param: nn.Parameter, value: Tensor) -> None:
    """Set this rank's shard of the reduced gradient to the unscaled ``value``."""
    trained = _find(param)
    if trained is not None and (gradient := trained.gradient()) is not None:
        gradient.copy_(value.view(gradient.shape) * trained.engine.loss_scaler.scale)

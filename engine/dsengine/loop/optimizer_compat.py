"""Attributes that programs read from DeepSpeed's optimizers, on the one ``initialize`` returns."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import proxy

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dsengine.optimizers.loss_scale import LossScaler
from dsengine.torch_private.tensors import local_part


class _WithoutExternalParameters(nn.Module):
    """A module without external parameters, as programs that remove hooks expect one."""

    def ds_external_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())


def _inert_handle() -> RemovableHandle:
    return RemovableHandle(OrderedDict())


class ParameterOffload:
    """The object on which programs such as TRL remove and register DeepSpeed's gather hooks.

    They do so around generation. dsengine gathers with torch's hooks, which work in both modes and
    stay installed; one inert handle represents them.
    """

    def __init__(self) -> None:
        self.module = _WithoutExternalParameters()
        self._register_deepspeed_module(self.module)

    def _register_deepspeed_module(self, module: nn.Module) -> None:
        """Show hooks as registered."""
        del module
        self.forward_hooks: list[Any] = [_inert_handle()]
        self.backward_hooks: list[Any] = [_inert_handle()]

    def remove_hooks(self) -> None:
        """Show hooks as removed."""
        self.forward_hooks, self.backward_hooks = [], []


class LossScaleView:
    """The current loss scale under DeepSpeed's attribute names."""

    def __init__(self, scaler: LossScaler) -> None:
        self._scaler = scaler

    def is_needed(self) -> bool:
        """Whether a script that calls ``loss.backward()`` itself must scale the loss."""
        return self._scaler.dynamic

    def is_of(self, scaler: LossScaler) -> bool:
        return self._scaler is scaler

    @property
    def cur_scale(self) -> float:
        return self._scaler.scale

    loss_scale = cur_scale

    @property
    def cur_iter(self) -> int:
        """Boundaries so far; 0 for a static scale, which does not count them."""
        return getattr(self._scaler, "iteration", 0)

    @property
    def dynamic_loss_scale(self) -> bool:
        return self._scaler.dynamic

    dynamic = dynamic_loss_scale

    @property
    def scale_window(self) -> int | None:
        """Boundaries without overflow until the scale doubles; None for a static scale."""
        return getattr(self._scaler, "window", None)

    @property
    def min_loss_scale(self) -> float | None:
        return getattr(self._scaler, "minimum", None)

    min_scale = min_loss_scale


class MasterViews(Sequence[Tensor]):
    """This rank's fp32 master shards, flat, one for each updated parameter.

    DeepSpeed concatenates those of a group in one tensor.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = proxy(optimizer)

    def __len__(self) -> int:
        return sum(len(group["params"]) for group in self._optimizer.param_groups)

    def __getitem__(self, index: Any) -> Any:
        shards = [shard for group in self._optimizer.param_groups for shard in group["params"]]
        chosen = shards[index]
        return [_flat(shard) for shard in chosen] if isinstance(index, slice) else _flat(chosen)


def _flat(shard: Tensor) -> Tensor:
    return local_part(shard).detach().view(-1)


_MASTERS = {
    0: "fp32_groups_flat",
    1: "single_partition_of_fp32_groups",
    2: "single_partition_of_fp32_groups",
    3: "fp32_partitioned_groups_flat",
}
"""DeepSpeed's attribute for the masters, by stage; stage 0 has masters only in 16-bit training."""


def publish_state(
    optimizer: Optimizer, scaler: LossScaler, *, overflow: bool, stage: int, dtype: torch.dtype
) -> None:
    """Set DeepSpeed's attributes on ``optimizer`` after a step at ZeRO ``stage``.

    ``dtype``: the compute dtype.
    """
    low_precision = None if dtype is torch.float32 else dtype
    attributes: dict[str, Any] = {
        "zero_stage": stage,
        "low_precision_dtype": low_precision,
        "overflow": overflow,
        "cur_scale": scaler.scale,
        "loss_scale": scaler.scale,
    }
    published = getattr(optimizer, "loss_scaler", None)
    if not isinstance(published, LossScaleView) or not published.is_of(scaler):
        view = LossScaleView(scaler)
        attributes |= {
            "loss_scaler": view,
            "loss_scale_config": view,
            "dynamic_loss_scale": scaler.dynamic,
            "needs_scaler": view.is_needed,
        }
    # Set once. DeepSpeed's optimizers wrap torch's; a proxy avoids a reference cycle.
    once: dict[str, Callable[[], Any]] = {"optimizer": lambda: proxy(optimizer)}
    if stage > 0 or low_precision is not None:
        once[_MASTERS[stage]] = lambda: MasterViews(optimizer)
    if stage == 3:
        once["parameter_offload"] = ParameterOffload
    attributes |= {name: make() for name, make in once.items() if not hasattr(optimizer, name)}
    for name, value in attributes.items():
        setattr(optimizer, name, value)

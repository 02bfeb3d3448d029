"""What programs read from the optimizer that ``initialize`` returns, as from DeepSpeed's."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import proxy

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from dsengine.optimizers.loss_scale import LossScaler
from dsengine.torch_private import local_part


class _WithoutHooks(nn.Module):
    """Has no parameters of which a program would have to forget who uses them."""

    def ds_external_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())


def _removes_nothing() -> RemovableHandle:
    return RemovableHandle(OrderedDict())


class ParameterOffload:
    """Where programs take DeepSpeed's hooks off a model before it generates, and put them back.

    TRL does. Those that gather parameters here are torch's, which stay on and are right in both:
    for all of them stands one handle that removes nothing.
    """

    def __init__(self) -> None:
        self.module = _WithoutHooks()
        self._register_deepspeed_module(self.module)

    def _register_deepspeed_module(self, module: nn.Module) -> None:
        """Show that hooks are on (again)."""
        del module
        self.forward_hooks: list[Any] = [_removes_nothing()]
        self.backward_hooks: list[Any] = [_removes_nothing()]

    def remove_hooks(self) -> None:
        """Show that none is on."""
        self.forward_hooks, self.backward_hooks = [], []


class LossScaleView:
    """The scale of the loss as it is now, by DeepSpeed's names."""

    def __init__(self, scaler: LossScaler) -> None:
        self._scaler = scaler

    def is_needed(self) -> bool:
        """Whether a script that calls ``loss.backward()`` itself has to scale the loss."""
        return self._scaler.dynamic

    def is_of(self, scaler: LossScaler) -> bool:
        return self._scaler is scaler

    @property
    def cur_scale(self) -> float:
        return self._scaler.scale

    loss_scale = cur_scale

    @property
    def cur_iter(self) -> int:
        """Boundaries until now; of a fixed scale nobody counts them."""
        return getattr(self._scaler, "iteration", 0)

    @property
    def dynamic_loss_scale(self) -> bool:
        return self._scaler.dynamic

    dynamic = dynamic_loss_scale

    @property
    def scale_window(self) -> int | None:
        """Boundaries without overflow until the scale is doubled; None of a fixed scale."""
        return getattr(self._scaler, "window", None)

    @property
    def min_loss_scale(self) -> float | None:
        return getattr(self._scaler, "minimum", None)

    min_scale = min_loss_scale


class MasterViews(Sequence[Tensor]):
    """This rank's parts of the fp32 masters, flat; one for each parameter that is updated.

    DeepSpeed lays those of a group end to end in one tensor.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = proxy(optimizer)

    def __len__(self) -> int:
        return sum(len(group["params"]) for group in self._optimizer.param_groups)

    def __getitem__(self, place: Any) -> Any:
        parts = [part for group in self._optimizer.param_groups for part in group["params"]]
        chosen = parts[place]
        return [_flat(each) for each in chosen] if isinstance(place, slice) else _flat(chosen)


def _flat(part: Tensor) -> Tensor:
    return local_part(part).detach().view(-1)


_MASTERS = {
    0: "fp32_groups_flat",
    1: "single_partition_of_fp32_groups",
    2: "single_partition_of_fp32_groups",
    3: "fp32_partitioned_groups_flat",
}
"""By stage, what DeepSpeed calls them; at stage 0 there are some beside weights of 16 bits."""


def publish_state(
    optimizer: Optimizer, scaler: LossScaler, *, overflow: bool, stage: int, dtype: torch.dtype
) -> None:
    """Let ``optimizer``, at this ``stage`` of ZeRO, print_rank0 how its last step went.

    ``dtype`` is that of the weights in forward and backward.
    """
    told: Any = optimizer
    told.zero_stage = stage
    told.low_precision_dtype = None if dtype is torch.float32 else dtype
    told.overflow = overflow
    told.cur_scale = told.loss_scale = scaler.scale
    known = getattr(told, "loss_scaler", None)
    if not isinstance(known, LossScaleView) or not known.is_of(scaler):  # another engine's
        told.loss_scaler = told.loss_scale_config = LossScaleView(scaler)
        told.dynamic_loss_scale = scaler.dynamic
        told.needs_scaler = told.loss_scaler.is_needed
    if not hasattr(told, "optimizer"):
        told.optimizer = proxy(optimizer)  # DeepSpeed's has torch's within; a cycle would stay
    has_masters = stage > 0 or told.low_precision_dtype is not None
    if has_masters and not hasattr(told, _MASTERS[stage]):
        setattr(told, _MASTERS[stage], MasterViews(optimizer))
    if stage == 3 and not hasattr(told, "parameter_offload"):
        told.parameter_offload = ParameterOffload()

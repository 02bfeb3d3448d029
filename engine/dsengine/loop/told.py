"""What programs read from the optimizer that ``initialize`` returns, as from DeepSpeed's."""

from collections.abc import Iterator
from typing import Any
from weakref import proxy

from torch import Tensor, nn
from torch.optim import Optimizer

from dsengine.optimizers.loss_scale import LossScaler


class _WithoutHooks(nn.Module):
    """Has no parameters of which a program would have to forget who uses them."""

    def ds_external_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())


class ParameterOffload:
    """Where programs take DeepSpeed's hooks off a model before it generates, and put them back.

    TRL does. Those that gather parameters here are torch's, and are right in both.
    """

    def __init__(self) -> None:
        self.module = _WithoutHooks()
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []

    def _register_deepspeed_module(self, module: nn.Module) -> None:
        """Nothing: no hook was taken off."""


def tell(optimizer: Optimizer, scaler: LossScaler, *, overflow: bool, divided: bool) -> None:
    """Let ``optimizer`` say how its last step went; ``divided``: whether parameters are shards."""
    told: Any = optimizer
    told.overflow = overflow
    told.cur_scale = told.loss_scale = scaler.scale
    told.loss_scaler = scaler
    if not hasattr(told, "optimizer"):
        told.optimizer = proxy(optimizer)  # DeepSpeed's has torch's within; a cycle would stay
    if divided and not hasattr(told, "parameter_offload"):
        told.parameter_offload = ParameterOffload()

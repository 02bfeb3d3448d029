"""From the plan's numerics to torch dtypes and the loss scaler."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_map

from dsconfig import Effective
from dsengine.optimizers.loss_scale import (
    DynamicLossScale,
    LossScaler,
    PatientLossScale,
    StaticLossScale,
)

T = TypeVar("T")

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """``compute``: dtype of weights and activations. ``wire``: of gradients while reduced.

    ``accumulation``: of the running sum of reduced gradients over a window.
    """

    compute: torch.dtype
    wire: torch.dtype
    accumulation: torch.dtype
    autocast: torch.dtype | None
    buffers: torch.dtype | None = None
    """What floating-point buffers are cast to; None leaves them."""
    casts_inputs: bool = False
    """Floating-point inputs of the model are cast to ``compute`` (fp16.auto_cast)."""

    @property
    def is_mixed(self) -> bool:
        return self.compute is not torch.float32

    @property
    def compute_is_fp16(self) -> bool:
        return self.compute is torch.float16

    def storage_dtype(self, parameter: nn.Parameter) -> torch.dtype:
        """The dtype in which this rank keeps its part of ``parameter`` between steps.

        In mixed precision what is trained has fp32 masters; what has no elements has the dtype of
        what it is joined to. A frozen weight is only computed with: it keeps its own dtype where
        that is the narrower one.
        """
        own = parameter.dtype
        if not (self.is_mixed and own.is_floating_point):
            return own
        if parameter.numel() == 0:
            return self.compute
        if parameter.requires_grad:
            return torch.float32
        return own if own.itemsize < self.compute.itemsize else self.compute

    def without_masters(self, module: nn.Module) -> list[tuple[str, nn.Module]]:
        """Names of what in a model at rest must stay frozen, for want of fp32, and who owns it."""
        return [
            (name, module.get_submodule(name.rpartition(".")[0]))
            for name, parameter in module.named_parameters()
            if self.is_mixed and not parameter.requires_grad and parameter.is_floating_point()
            if parameter.dtype is not torch.float32
        ]

    def before_masters(self, parameter: nn.Parameter) -> torch.dtype:
        """The dtype of ``parameter`` until masters are made; what will have none rests at once."""
        return parameter.dtype if parameter.requires_grad else self.storage_dtype(parameter)

    def reduced_from(self, *, whole_window: bool) -> torch.dtype:
        """The dtype in which gradients of whole parameters are held until they are reduced.

        Those of a ``whole_window`` are summed before: in the accumulation dtype where that is
        wider than the wire, to which they are cast last.
        """
        wider = self.accumulation.itemsize > self.wire.itemsize
        return self.accumulation if whole_window and wider else self.wire

    def cast(self, inputs: T) -> T:
        """Cast the floating-point tensors in a tree of inputs."""
        return tree_map(self._cast_one, inputs)

    def _cast_one(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(self.compute)
        return value

    def autocast_context(self, device: torch.device) -> AbstractContextManager[object]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.autocast)


def policy(effective: Effective) -> Policy:
    numerics = effective.numerics
    return Policy(
        compute=DTYPES[numerics.precision],
        wire=DTYPES[numerics.communication_dtype],
        accumulation=DTYPES[numerics.grad_accum_dtype],
        autocast=DTYPES[numerics.autocast] if numerics.autocast else None,
        buffers=DTYPES[numerics.buffer_dtype] if numerics.buffer_dtype else None,
        casts_inputs=numerics.fp16_auto_cast,
    )


def loss_scaler(effective: Effective) -> LossScaler:
    """Return the scaler the plan asks for; outside fp16 it is the constant 1."""
    settings = effective.numerics.loss_scale
    if settings is None:
        return StaticLossScale(1.0)
    if settings.static is not None:
        return StaticLossScale(float(settings.static))
    if effective.zero.stage == 0:
        return DynamicLossScale(
            initial_power=settings.initial_power,
            window=settings.window,
            minimum=settings.minimum,
        )
    return PatientLossScale(
        initial_power=settings.initial_power,
        window=settings.window,
        minimum=settings.minimum,
        hysteresis=settings.hysteresis,
        consecutive_hysteresis=settings.consecutive_hysteresis,
    )

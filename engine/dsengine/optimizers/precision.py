"""Torch dtypes and the loss scaler for a plan's numerics."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_map

from dsconfig import Effective
from dsengine.optimizers.loss_scale import (
    AutocastLossScale,
    DynamicLossScale,
    HysteresisLossScale,
    LossScaler,
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
    """``compute``: dtype of weights and activations. ``wire``: of gradients in reductions.

    ``accumulation``: of the sum of reduced gradients over the micro steps of a step.
    """

    compute: torch.dtype
    wire: torch.dtype
    accumulation: torch.dtype
    autocast: torch.dtype | None
    master: torch.dtype = torch.float32
    """Dtype of the weights that the optimizer updates."""
    states: torch.dtype = torch.float32
    """Dtype of the optimizer's states."""
    buffers: torch.dtype | None = None
    """Dtype that floating-point buffers are cast to; None keeps theirs."""
    fp32_buffers: tuple[str, ...] | None = None
    """Name patterns of the buffers that are fp32 instead; None: those that the model names."""
    casts_inputs: bool = False
    """Whether floating-point inputs of the model are cast to ``compute`` (fp16.auto_cast)."""

    @property
    def is_mixed(self) -> bool:
        return self.compute is not torch.float32

    @property
    def copies_weights(self) -> bool:
        """Whether the optimizer updates a copy of the weights, in another dtype."""
        return self.master is not self.compute

    @property
    def uses_fp16(self) -> bool:
        """Whether gradients may leave the range of fp16, so that the loss is scaled."""
        return torch.float16 in (self.compute, self.autocast)

    def storage_dtype(self, parameter: nn.Parameter) -> torch.dtype:
        """Return the dtype in which this rank stores its shard of ``parameter`` between steps.

        In mixed precision, trainable parameters have the masters' dtype, and parameters without
        elements use the dtype of those they are flattened with. A frozen parameter keeps its own
        dtype if that is narrower than ``compute``.
        """
        own = parameter.dtype
        if not (self.is_mixed and own.is_floating_point):
            return own
        if parameter.numel() == 0:
            return self.compute
        if parameter.requires_grad:
            return self.master
        return own if own.itemsize < self.compute.itemsize else self.compute

    def frozen_without_masters(self, module: nn.Module) -> list[tuple[str, nn.Module]]:
        """Return stored parameters that must stay frozen because they have no master."""
        return [
            (name, module.get_submodule(name.rpartition(".")[0]))
            for name, parameter in module.named_parameters()
            if self.is_mixed and not parameter.requires_grad and parameter.is_floating_point()
            if parameter.dtype is not self.master
        ]

    def state_dtype(self, weight: torch.Tensor, saved: torch.dtype) -> torch.dtype:
        """Return the dtype for a state of ``weight`` that has been saved as ``saved``.

        For optimizers that create their states in ``states``. Integers, and states of weights that
        the optimizer does not update in ``master``, keep the saved dtype.
        """
        is_of_master = saved.is_floating_point and weight.dtype is self.master
        return self.states if is_of_master else saved

    def initial_dtype(self, parameter: nn.Parameter) -> torch.dtype:
        """Return the dtype of ``parameter`` until masters are created."""
        return parameter.dtype if parameter.requires_grad else self.storage_dtype(parameter)

    def cast(self, inputs: T) -> T:
        """Cast all floating-point tensors in a tree of inputs."""
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
        master=DTYPES[numerics.master_dtype],
        states=DTYPES[numerics.state_dtype],
        buffers=DTYPES[numerics.buffer_dtype] if numerics.buffer_dtype else None,
        fp32_buffers=numerics.fp32_buffers,
        casts_inputs=numerics.fp16_auto_cast,
    )


def loss_scaler(effective: Effective) -> LossScaler:
    """Return the plan's loss scaler; the constant 1 outside fp16 and fp16 autocast."""
    settings = effective.numerics.loss_scale
    if settings is None:
        return AutocastLossScale() if policy(effective).uses_fp16 else StaticLossScale(1.0)
    if settings.static is not None:
        return StaticLossScale(float(settings.static))
    if effective.zero.stage == 0:
        return DynamicLossScale(
            initial_power=settings.initial_power,
            window=settings.window,
            minimum=settings.minimum,
        )
    return HysteresisLossScale(
        initial_power=settings.initial_power,
        window=settings.window,
        minimum=settings.minimum,
        hysteresis=settings.hysteresis,
        consecutive_hysteresis=settings.consecutive_hysteresis,
    )

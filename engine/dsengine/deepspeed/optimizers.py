"""DeepSpeed's optimizer classes: torch's fused kernels with DeepSpeed's names and arguments.

DeepSpeed has one Adam for parameters on the GPU and one for those on the host. torch's kernel
serves both, and the config's ``offload_optimizer`` selects the device of the states.

[Note: dtype of states]
torch's optimizers and the engine's keep states in the dtype of the parameters. DeepSpeed's CPU
optimizers keep them in fp32 for 16-bit parameters, unless ``fp32_optimizer_states`` is false: each
step is computed in fp32, and the parameters are rounded after it. An engine steps fp32 masters, for
which it makes no difference, as in DeepSpeed.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Adagrad, Optimizer

from dsengine.optimizers.adam import Adam, without_correction
from dsengine.optimizers.build import DEEPSPEED_CLASS
from dsengine.optimizers.gradients import evaluate
from dsengine.optimizers.lion import Lion

NARROW = (torch.float16, torch.bfloat16)


class _Narrow(NamedTuple):
    """A 16-bit parameter with its data and gradient outside of a step."""

    parameter: Tensor
    data: Tensor
    gradient: Tensor


def step_in_fp32(optimizer: Optimizer) -> None:
    """Let ``optimizer`` step 16-bit parameters in fp32, with fp32 states."""
    stepped: list[_Narrow] = []

    @torch.no_grad()
    def widen(source: Optimizer, args: Any, kwargs: Any) -> Any:
        narrow = [p for group in source.param_groups for p in group["params"] if p.dtype in NARROW]
        if not narrow:
            return None
        args, kwargs = _with_closure_called(args, kwargs)
        for param in narrow:
            if param.grad is not None:
                stepped.append(_Narrow(param, param.data, param.grad))
                _replace(param, param.data.float(), param.grad.float())
                for name, state in source.state.get(param, {}).items():
                    if isinstance(state, Tensor) and state.dtype in NARROW:
                        source.state[param][name] = state.float()
        return args, kwargs

    @torch.no_grad()
    def round_back(*_: Any) -> None:
        for entry in stepped:
            entry.data.copy_(entry.parameter.data)
            _replace(entry.parameter, entry.data, entry.gradient)
        stepped.clear()

    optimizer.register_step_pre_hook(widen)
    optimizer.register_step_post_hook(round_back)


def _replace(parameter: Tensor, data: Tensor, gradient: Tensor) -> None:
    parameter.grad = None
    parameter.data = data
    parameter.grad = gradient


def _with_closure_called(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Call the closure, which needs 16-bit parameters, and return ``step``'s new arguments."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return args, kwargs
    loss = evaluate(closure)
    return args[:1], {"closure": lambda: loss}


Betas = tuple[float, float]


class DeepSpeedClass(type):
    """Metaclass that makes optimizers built from a config instances of DeepSpeed's classes."""

    def __instancecheck__(cls, instance: Any) -> bool:
        built = getattr(instance, DEEPSPEED_CLASS, None)
        return super().__instancecheck__(instance) or built == cls.__name__


class ConfigurableZeroGrad(Optimizer):
    """An optimizer whose ``zero_grad`` follows ``set_grad_none``."""

    set_grad_none: bool

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Set gradients to None, or to zero if ``set_grad_none`` is false."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


class _FusedAdam(Adam):
    """torch's fused kernel. Raises ValueError for ``amsgrad``."""

    def __init__(
        self,
        params: Any,
        lr: float,
        bias_correction: bool,
        betas: Betas,
        eps: float,
        weight_decay: float,
        amsgrad: bool,
        decoupled: bool,
    ) -> None:
        if amsgrad:
            raise ValueError(
                f"{type(self).__name__} does not support amsgrad, as in DeepSpeed: use "
                "torch.optim.AdamW(amsgrad=True)"
            )
        super().__init__(
            params, lr, betas, eps, weight_decay, fused=True, decoupled_weight_decay=decoupled
        )
        if not bias_correction:
            without_correction(self)


class FusedAdam(ConfigurableZeroGrad, _FusedAdam, metaclass=DeepSpeedClass):
    """Adam with decoupled weight decay (AdamW) unless ``adam_w_mode`` is false.

    ``step`` of an engine always sets gradients to None. Raises ValueError for ``amsgrad``, which
    DeepSpeed's kernel does not support.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(
            params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode
        )
        self.set_grad_none = set_grad_none


class DeepSpeedCPUAdam(_FusedAdam, metaclass=DeepSpeedClass):
    """Adam with decoupled weight decay (AdamW) unless ``adamw_mode`` is false.

    ``fp32_optimizer_states=False``: states have the dtype of the parameters. Raises ValueError for
    ``amsgrad``, which DeepSpeed's kernel does not support.
    """

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(
            model_params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adamw_mode
        )
        if fp32_optimizer_states:
            step_in_fp32(self)


class DeepSpeedCPUAdagrad(Adagrad, metaclass=DeepSpeedClass):
    """Adagrad. Raises ValueError for ``amsgrad``.

    ``fp32_optimizer_states=False``: states have the dtype of the parameters.
    """

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if amsgrad:
            raise ValueError("DeepSpeedCPUAdagrad does not support amsgrad: omit the argument")
        super().__init__(model_params, lr, weight_decay=weight_decay, eps=eps)
        if fp32_optimizer_states:
            step_in_fp32(self)


class FusedLion(ConfigurableZeroGrad, Lion, metaclass=DeepSpeedClass):
    """Lion; ``step`` of an engine always sets gradients to None."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, betas, weight_decay)
        self.set_grad_none = set_grad_none


class DeepSpeedCPULion(Lion, metaclass=DeepSpeedClass):
    """Lion. ``fp32_optimizer_states=False``: states have the dtype of the parameters."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        weight_decay: float = 0.0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, lr, betas, weight_decay)
        if fp32_optimizer_states:
            step_in_fp32(self)


class StageClass(type):
    """Metaclass: instances are the optimizers stepped by an engine of the given ZeRO stages."""

    stages: tuple[int, ...]

    def __instancecheck__(cls, instance: Any) -> bool:
        is_optimizer = isinstance(instance, Optimizer)
        return is_optimizer and getattr(instance, "zero_stage", None) in cls.stages


class ZeROOptimizer(metaclass=StageClass):
    """The optimizers of engines of stages 1 to 3 are instances of this class."""

    stages = (1, 2, 3)


class HalfPrecisionClass(StageClass):
    """Metaclass of DeepSpeed's two classes for stage 0, in bf16 and fp16."""

    is_fused: bool

    def __instancecheck__(cls, instance: Any) -> bool:
        narrow = getattr(instance, "low_precision_dtype", None) is not None
        is_fused = isinstance(instance, FusedAdam)
        return super().__instancecheck__(instance) and narrow and is_fused is cls.is_fused


class FP16_Optimizer(metaclass=HalfPrecisionClass):
    """A FusedAdam of such an engine is an instance of this class."""

    stages, is_fused = (0,), True


class FP16_UnfusedOptimizer(metaclass=HalfPrecisionClass):
    """Other optimizers of such an engine are instances of this class."""

    stages, is_fused = (0,), False


class LossScalerBase:
    """A scale of the loss, stored in ``cur_scale``."""

    dynamic = False

    def __init__(self, cur_scale: float) -> None:
        self.cur_scale = cur_scale

    @property
    def loss_scale(self) -> float:
        return self.cur_scale

    def scale_loss(self, loss: Any) -> Any:
        return loss * self.loss_scale


class LossScaler(LossScalerBase):
    """A fixed scale."""

    def __init__(self, scale: float = 1) -> None:
        super().__init__(scale)


class DynamicLossScaler(LossScalerBase):
    """A scale that overflows lower; the engine that loads the checkpoint updates it."""

    dynamic = True

    def __init__(
        self,
        init_scale: float,
        scale_window: int,
        min_scale: float,
        delayed_shift: int,
        consecutive_hysteresis: bool,
        raise_error_at_min_scale: bool = True,
        dtype: torch.dtype = torch.half,
    ) -> None:
        super().__init__(init_scale)
        self.cur_iter, self.last_overflow_iter = 0, -1
        self.scale_factor, self.scale_window, self.min_scale = 2.0, scale_window, min_scale
        self.delayed_shift = self.cur_hysteresis = delayed_shift
        self.consecutive_hysteresis = consecutive_hysteresis
        self.raise_error_at_min_scale, self.dtype = raise_error_at_min_scale, dtype

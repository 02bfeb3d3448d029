"""DeepSpeed's two Adams: torch's fused kernel with DeepSpeed's names, arguments and defaults.

DeepSpeed has one class for parameters on the GPU and one for those on the host. torch's kernel
serves both, and the config's ``offload_optimizer`` selects the device of the states.
"""

from typing import Any

from torch.optim import Optimizer

from dsengine.deepspeed.ops.states import step_in_fp32
from dsengine.optimizers.adam import Adam, without_correction
from dsengine.optimizers.build import DEEPSPEED_CLASS

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


class FusedAdam(ConfigurableZeroGrad, Adam, metaclass=DeepSpeedClass):
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
        _refuse_amsgrad(type(self).__name__, amsgrad)
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            fused=True,
            decoupled_weight_decay=adam_w_mode,
        )
        if not bias_correction:
            without_correction(self)
        self.set_grad_none = set_grad_none


class DeepSpeedCPUAdam(Adam, metaclass=DeepSpeedClass):
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
        _refuse_amsgrad(type(self).__name__, amsgrad)
        super().__init__(
            model_params,
            lr,
            betas,
            eps,
            weight_decay,
            fused=True,
            decoupled_weight_decay=adamw_mode,
        )
        if not bias_correction:
            without_correction(self)
        if fp32_optimizer_states:
            step_in_fp32(self)


def _refuse_amsgrad(name: str, amsgrad: bool) -> None:
    if amsgrad:
        raise ValueError(
            f"{name} does not support amsgrad, as in DeepSpeed: use torch.optim.AdamW(amsgrad=True)"
        )

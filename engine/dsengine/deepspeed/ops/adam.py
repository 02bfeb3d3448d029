"""DeepSpeed's two Adams: torch's fused kernel under their names, arguments and defaults.

Where DeepSpeed has one class for parameters on the device and one for those on the host, torch's
kernel is for both, and the config's ``offload_optimizer`` decides where the states are.
"""

from typing import Any

from torch.optim import Adam, Optimizer

from dsengine.deepspeed.ops.states import step_in_fp32
from dsengine.optimizers.build import DEEPSPEED_CLASS

Betas = tuple[float, float]


class StandingFor(type):
    """The type of DeepSpeed's classes: what is built from a config in their place is theirs too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        built = getattr(instance, DEEPSPEED_CLASS, None)
        return super().__instancecheck__(instance) or built == cls.__name__


class ZeroesAsTold(Optimizer):
    """Its ``zero_grad`` does what ``set_grad_none`` says."""

    set_grad_none: bool

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients, or fill them with zeros if ``set_grad_none`` was false."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


class FusedAdam(ZeroesAsTold, Adam, metaclass=StandingFor):
    """Adam with decoupled weight decay (AdamW) unless ``adam_w_mode`` is false.

    ``step`` of an engine drops gradients by itself, whatever ``set_grad_none`` says. Raises
    ValueError for ``amsgrad`` and for ``bias_correction=False``, which the kernel does not have.
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
        _refuse(type(self).__name__, amsgrad, bias_correction)
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            fused=True,
            decoupled_weight_decay=adam_w_mode,
        )
        self.set_grad_none = set_grad_none


class DeepSpeedCPUAdam(Adam, metaclass=StandingFor):
    """Adam with decoupled weight decay (AdamW) unless ``adamw_mode`` is false.

    ``fp32_optimizer_states=False``: states have the dtype of the parameters. Raises ValueError for
    ``amsgrad`` and ``bias_correction=False``, which the kernel does not have.
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
        _refuse(type(self).__name__, amsgrad, bias_correction)
        super().__init__(
            model_params,
            lr,
            betas,
            eps,
            weight_decay,
            fused=True,
            decoupled_weight_decay=adamw_mode,
        )
        if fp32_optimizer_states:
            step_in_fp32(self)


def _refuse(name: str, amsgrad: bool, bias_correction: bool) -> None:
    if amsgrad:
        raise ValueError(
            f"{name} has no AMSGrad, here as in DeepSpeed: use torch.optim.AdamW(amsgrad=True)"
        )
    if not bias_correction:
        raise ValueError(
            f"{name}(bias_correction=False) is not offered: torch's Adam always corrects the "
            "moments for their start at zero; leave the argument out"
        )

"""DeepSpeed's Adagrad: torch's fused kernel under its name, arguments and defaults."""

from typing import Any

from torch.optim import Adagrad

from dsengine.deepspeed.ops.adam import StandingFor, refuse_narrow_states


class DeepSpeedCPUAdagrad(Adagrad, metaclass=StandingFor):
    """Adagrad. Raises ValueError for ``amsgrad`` and ``fp32_optimizer_states=False``."""

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
            raise ValueError("DeepSpeedCPUAdagrad has no AMSGrad: leave the argument out")
        refuse_narrow_states(type(self).__name__, fp32_optimizer_states)
        super().__init__(model_params, lr, weight_decay=weight_decay, eps=eps)

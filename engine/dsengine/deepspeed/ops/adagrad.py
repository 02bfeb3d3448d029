"""DeepSpeed's Adagrad: torch's fused kernel under its name, arguments and defaults."""

from typing import Any

from torch.optim import Adagrad

from dsengine.deepspeed.ops.adam import StandingFor
from dsengine.deepspeed.ops.states import step_in_fp32


class DeepSpeedCPUAdagrad(Adagrad, metaclass=StandingFor):
    """Adagrad. Raises ValueError for ``amsgrad``.

    ``fp32_optimizer_states=False``: its state has the dtype of the parameters.
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
            raise ValueError("DeepSpeedCPUAdagrad has no AMSGrad: leave the argument out")
        super().__init__(model_params, lr, weight_decay=weight_decay, eps=eps)
        if fp32_optimizer_states:
            step_in_fp32(self)

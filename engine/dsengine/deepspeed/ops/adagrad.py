"""DeepSpeed's Adagrad: torch's fused kernel with DeepSpeed's name, arguments and defaults."""

from typing import Any

from torch.optim import Adagrad

from dsengine.deepspeed.ops.adam import DeepSpeedClass
from dsengine.deepspeed.ops.states import step_in_fp32


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

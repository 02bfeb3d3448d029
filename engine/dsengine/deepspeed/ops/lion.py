"""DeepSpeed's two Lions: the engine's Lion with DeepSpeed's names and arguments."""

from typing import Any

from dsengine.deepspeed.ops.adam import Betas, ConfigurableZeroGrad, DeepSpeedClass
from dsengine.deepspeed.ops.states import step_in_fp32
from dsengine.optimizers.lion import Lion


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

"""DeepSpeed's two Lions: the engine's Lion under their names and arguments."""

from typing import Any

from dsengine.deepspeed.ops.adam import Betas, StandingFor, ZeroesAsTold
from dsengine.deepspeed.ops.states import step_in_fp32
from dsengine.optimizers.lion import Lion


class FusedLion(ZeroesAsTold, Lion, metaclass=StandingFor):
    """Lion; ``step`` of an engine drops gradients by itself, whatever ``set_grad_none`` says."""

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


class DeepSpeedCPULion(Lion, metaclass=StandingFor):
    """Lion. ``fp32_optimizer_states=False``: its state has the dtype of the parameters."""

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

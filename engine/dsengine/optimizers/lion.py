"""The Lion optimizer, which PyTorch does not have."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dsengine.optimizers.gradients import evaluate
from dsengine.torch_private.tensors import (
    foreach_lerp,
    foreach_lerp_,
    foreach_mul_,
    foreach_step_by_sign_,
)


class Lion(Optimizer):
    """Steps by the sign of an interpolated momentum (https://arxiv.org/abs/2302.06675).

    c = lerp(g, m, beta1); p = p (1 - lr weight_decay) - lr sign(c); m = lerp(g, m, beta2).
    Defaults are DeepSpeed's. If c is 0 there is no update; DeepSpeed's kernel then moves by lr.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        if lr < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"Lion needs lr and weight_decay of at least 0 and betas in [0, 1): lr {lr}, "
                f"weight_decay {weight_decay}, betas {betas}"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have a gradient; return the result of ``closure``."""
        loss = evaluate(closure)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [p.grad for p in parameters]
        for p in parameters:
            if not self.state[p]:
                self.state[p]["exp_avg"] = torch.zeros_like(p)
        momenta = [self.state[p]["exp_avg"] for p in parameters]
        beta1, beta2 = group["betas"]
        rate = float(group["lr"])
        steps = foreach_lerp(momenta, gradients, 1 - beta1)
        if group["weight_decay"]:
            foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        foreach_step_by_sign_(parameters, steps, -rate)
        foreach_lerp_(momenta, gradients, 1 - beta2)

"""The LAMB optimizer, which PyTorch does not have."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dsconfig.features.table import FEATURES
from dsengine.optimizers.adam import SETTING
from dsengine.optimizers.gradients import evaluate
from dsengine.torch_private.tensors import local_part


class Lamb(Optimizer):
    """Adam with a step per parameter in proportion to its norm (https://arxiv.org/abs/1904.00962).

    m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; u = m / (sqrt(v) + eps) +
    weight_decay p; p = p - lr sqrt(1 - beta2^t) / (1 - beta1^t) r u, with the trust ratio r =
    |p| / |u| in [min_coeff, max_coeff], or 1 if a norm is 0. Norms are of full parameters, also of
    shards. Formula and defaults are those of DeepSpeed's kernel, also for ``eps_inside_sqrt``
    (sqrt(v + eps)) and ``bias_correction`` (a group's False: the step is lr r u).
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        if amsgrad:
            raise ValueError(FEATURES["lamb_amsgrad"].text)
        if min(lr, eps, weight_decay) < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"Lamb needs lr, eps and weight_decay of at least 0 and betas in [0, 1): lr {lr}, "
                f"eps {eps}, weight_decay {weight_decay}, betas {betas}"
            )
        if not 0 <= min_coeff <= max_coeff:
            raise ValueError(f"Lamb needs 0 <= min_coeff <= max_coeff: {min_coeff} and {max_coeff}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "eps_inside_sqrt": eps_inside_sqrt}
        bounds = {"max_coeff": max_coeff, "min_coeff": min_coeff}
        super().__init__(params, {**defaults, "weight_decay": weight_decay, **bounds})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have a gradient; return the result of ``closure``."""
        loss = evaluate(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean, square, gradient = state["exp_avg"], state["exp_avg_sq"], parameter.grad
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if group["eps_inside_sqrt"]:
            update = square.add(group["eps"]).sqrt_()
        else:
            update = square.sqrt().add_(group["eps"])
        update = mean / update
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
        rate = float(group["lr"])
        if group.get(SETTING, True):
            count = state["step"].item()
            rate *= math.sqrt(1 - beta2**count) / (1 - beta1**count)
        step = local_part(update).mul_(_trust_ratio(parameter, update, group))
        local_part(parameter).add_(step, alpha=-rate)


def _trust_ratio(parameter: Tensor, update: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the clipped ratio of the norms, 1 if one of them is 0."""
    weight, change = _norm(parameter), _norm(update)
    ratio = (weight / change).clamp(group["min_coeff"], group["max_coeff"])
    return torch.where((weight == 0) | (change == 0), 1.0, ratio)


def _norm(tensor: Tensor) -> Tensor:
    """Return the norm of the full tensor. Collective for a shard."""
    norm = torch.linalg.vector_norm(tensor)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm

"""torch's Adam and AdamW with DeepSpeed's ``bias_correction: false``.

torch divides the moments by 1 - beta ** step. Its update functions take the steps from a list; here
the list contains infinity, for which the divisor is 1. The states keep the actual steps.
"""

import math
from typing import Any

import torch
from torch import Tensor, optim

SETTING = "bias_correction"
"""The entry of a parameter group; a group without it is corrected, as in torch."""


class Adam(optim.Adam):
    """Adam whose groups may have ``bias_correction`` False."""

    def _init_group(
        self,
        group: Any,
        params_with_grad: Any,
        grads: Any,
        exp_avgs: Any,
        exp_avg_sqs: Any,
        max_exp_avg_sqs: Any,
        state_steps: Any,
    ) -> Any:
        lists = (params_with_grad, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps)
        found = super()._init_group(group, *lists)
        if not group.get(SETTING, True):
            _replace_by_infinity(state_steps)
        return found


class AdamW(Adam, optim.AdamW):
    """AdamW whose groups may have ``bias_correction`` False."""


def _replace_by_infinity(steps: list[Tensor]) -> None:
    """Count a step in each of ``steps``, and put infinity in their place."""
    infinities: dict[torch.device, Tensor] = {}
    for index, step in enumerate(steps):
        step.add_(1)
        if step.device not in infinities:
            infinities[step.device] = torch.full_like(step, math.inf)
        steps[index] = infinities[step.device]


def without_correction(optimizer: optim.Optimizer) -> None:
    """Switch the correction off for all groups, also for those added later."""
    for group in (optimizer.defaults, *optimizer.param_groups):
        group[SETTING] = False

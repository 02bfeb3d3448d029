"""Parameters that nothing can divide: whole on every rank at every stage.

Those without a dimension (CLIP's ``logit_scale``), which ``fully_shard`` refuses, and those without
an element (DINOv3's register tokens when there are none), whose gradients it cannot reduce. They
stay the parameters they were, a scalar of fp32 in mixed precision (it does not change the dtype of
what it is multiplied with), and their gradients are summed over all ranks in one collective of
their own.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsengine.parameters.shards import is_indivisible
from dsengine.sharding.reduction import Averaging


def indivisible(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of ``module`` that stay whole."""
    return [parameter for parameter in module.parameters() if is_indivisible(parameter)]


class WholeGradients:
    """Reduces the gradients of ``parameters`` as those of the units are."""

    def __init__(self, parameters: list[nn.Parameter], averaging: Averaging) -> None:
        self._trained = [each for each in parameters if each.requires_grad]
        self._factor = averaging.before * averaging.after
        self._reduced: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}
        """Gradients as the last reduction left them, and their values then."""

    @torch.no_grad()
    def reduce(self) -> None:
        """Sum over ranks what has come since the last time. Collective where there are any."""
        if not self._trained:
            return
        fresh = [self._fresh(each).flatten() * self._factor for each in self._trained]
        used = torch.tensor([float(each.grad is not None) for each in self._trained])
        both = torch.cat([*fresh, used.to(fresh[0].device)])
        dist.all_reduce(both)
        *values, were_used = both.split([*map(len, fresh), len(fresh)])
        for parameter, value, was_used in zip(self._trained, values, were_used, strict=True):
            if was_used:
                total = self._before(parameter) + value.view(parameter.shape)
                parameter.grad = total.to(parameter.dtype)
                self._reduced[parameter] = (parameter.grad, total.clone())

    def _fresh(self, parameter: nn.Parameter) -> Tensor:
        if parameter.grad is None:
            return torch.zeros_like(parameter, dtype=torch.float32)
        return parameter.grad.float() - self._before(parameter)

    def _before(self, parameter: nn.Parameter) -> Tensor:
        """What ranks have in common of a gradient that is still being summed up."""
        gradient, value = self._reduced.get(parameter, (None, None))
        if value is None or gradient is not parameter.grad:
            return torch.zeros_like(parameter, dtype=torch.float32)
        return value

"""Finding out whose gradient stopped being a number."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


class NonFiniteGradientError(FloatingPointError):
    """A gradient is infinite or not a number; the weights have not been touched."""


def raise_non_finite(named: Iterable[tuple[str, Tensor]], step: int) -> None:
    """Raise on every rank, naming the first parameter (in the model's order).

    Collective: every rank calls it once the global norm is found not to be finite.
    """
    bad = [name for name, gradient in named if not torch.isfinite(gradient).all()]
    everywhere: list[list[str]] = [bad] * dist.get_world_size()
    dist.all_gather_object(everywhere, bad)
    names = list(dict.fromkeys(name for names in everywhere for name in names))
    which = f"of {names[0]!r}" if names else "norm"
    also = f" (and of {len(names) - 1} more parameters)" if len(names) > 1 else ""
    raise NonFiniteGradientError(
        f"the gradient {which}{also} is not finite at step {step}; the weights are unchanged. "
        "Look at the loss and the data of this step, lower the learning rate, or set "
        "bf16.check_grad_overflow to skip such steps"
    )

"""Finding out whose gradient stopped being a number."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


class NonFiniteGradientError(FloatingPointError):
    """A gradient is infinite or not a number; the weights have not been touched."""


def describe_non_finite(named: Iterable[tuple[str, Tensor]]) -> str:
    """Say which gradient is not finite: the first in the model's order, and how many more.

    Collective: every rank calls it once the global norm is found not to be finite.
    """
    bad = [name for name, gradient in named if not torch.isfinite(gradient).all()]
    everywhere: list[list[str]] = [bad] * dist.get_world_size()
    dist.all_gather_object(everywhere, bad)
    names = list(dict.fromkeys(name for names in everywhere for name in names))
    which = f"of {names[0]!r}" if names else "norm"
    also = f" (and of {len(names) - 1} more parameters)" if len(names) > 1 else ""
    return f"the gradient {which}{also} is not finite"

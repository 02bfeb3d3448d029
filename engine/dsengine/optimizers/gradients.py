"""Gradients at the step: their global norm, clipping by it, and whose stopped being numbers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dsengine.communication.devices import device_for
from dsengine.torch_private import foreach_mul_, foreach_norm

EPSILON = 1e-6
"""Added to the norm when the clipping factor is computed, as DeepSpeed and torch do."""


def result_of(closure: Callable[[], Any] | None) -> Any:
    """What the closure given to a ``step`` returns, which computes gradients; None without one."""
    with torch.enable_grad():
        return None if closure is None else closure()


@torch.no_grad()
def global_norm(gradients: Sequence[Tensor], group: dist.ProcessGroup | None) -> float:
    """Return the 2-norm over all gradients; parts of them are summed over ``group``.

    Norms are taken per tensor in its own precision and summed in float64. Not finite when
    any gradient is not. Some gradients may be on the device and others, of an offloaded
    optimizer, on the host; the sum travels on the device where the group has one.
    """
    home = torch.device("cpu") if group is None else device_for(group)
    total = torch.zeros((), dtype=torch.float64, device=home)
    for alike in _by_device(gradients):
        norms = torch.stack(foreach_norm(alike)).double()
        total += norms.square_().sum().to(home)
    if group is not None:
        dist.all_reduce(total, group=group)
    return total.sqrt().item()


def clipping_factor(norm: float, clipping: float) -> float:
    """Return what gradients of ``norm`` are multiplied with; 1 when clipping is 0 (off)."""
    if clipping <= 0:
        return 1.0
    return min(1.0, clipping / (norm + EPSILON))


@torch.no_grad()
def scale_gradients(gradients: Sequence[Tensor], factor: float) -> None:
    if factor != 1.0:
        for alike in _by_device(gradients):
            foreach_mul_(alike, factor)


def _by_device(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    found: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device, []).append(tensor)
    return list(found.values())


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

"""Gradients at the step: global norm, clipping, and reports of non-finite gradients."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dsengine.communication.devices import device_for
from dsengine.torch_private.tensors import foreach_mul_, foreach_norm

EPSILON = 1e-6
"""Added to the norm when the clipping factor is computed, as DeepSpeed and torch do."""


def evaluate(closure: Callable[[], Any] | None) -> Any:
    """Call the closure of a ``step`` with gradients enabled; return None without one."""
    with torch.enable_grad():
        return None if closure is None else closure()


_DIFFER = -1.0


class GlobalNorm(NamedTuple):
    """The 2-norm over all gradients, and whether all ranks passed the same ``order``."""

    value: float
    has_same_order: bool


@torch.no_grad()
def global_norm(
    gradients: Sequence[Tensor],
    group: dist.ProcessGroup | None,
    order: int = 0,
    stages: dist.ProcessGroup | None = None,
) -> GlobalNorm:
    """Return the norm; the local shards' sums are reduced over ``group``.

    Norms are taken per tensor in its own precision and summed in float64. Not finite if any
    gradient is not. Gradients may be on the GPU or, of an offloaded optimizer, on the host; the sum
    is reduced on the GPU if the group supports it. ``order``: a number below 2**12, compared over
    ``group``. ``stages``: the ranks with other layers, over which squares are summed too.
    """
    device = torch.device("cpu") if group is None else device_for(group)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for same_device in _by_device(gradients):
        norms = torch.stack(foreach_norm(same_device)).double()
        total += norms.square_().sum().to(device)
    if group is None:
        return _norm(total, torch.zeros_like(total), stages)
    totals = torch.stack([total, torch.full_like(total, order), torch.full_like(total, order**2)])
    dist.all_reduce(totals, group=group)
    squared_norm, orders, squared_orders = totals.unbind()
    differ = orders.square() != group.size() * squared_orders  # exact below 2**53
    return _norm(squared_norm, differ, stages)


def _norm(squared: Tensor, differ: Tensor, stages: dist.ProcessGroup | None) -> GlobalNorm:
    """``differ``: whether ranks passed different orders."""
    if stages is not None:
        totals = torch.stack([squared, differ.to(squared.dtype)]).to(device_for(stages))
        dist.all_reduce(totals, group=stages)
        squared, differ = totals.unbind()
    value = torch.where(differ > 0, _DIFFER, squared.sqrt()).item()  # the only read
    return GlobalNorm(value, has_same_order=value != _DIFFER)


def clipping_factor(norm: float, clipping: float) -> float:
    """Return the factor for gradients of this norm; 1 if clipping is 0 (off)."""
    if clipping <= 0:
        return 1.0
    return min(1.0, clipping / (norm + EPSILON))


@torch.no_grad()
def scale_gradients(gradients: Sequence[Tensor], factor: float) -> None:
    if factor != 1.0:
        for same_device in _by_device(gradients):
            foreach_mul_(same_device, factor)


def _by_device(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor)
    return list(by_device.values())


class NonFiniteGradientError(FloatingPointError):
    """A gradient is infinite or not a number; the weights are unchanged."""


def describe_non_finite(named: Iterable[tuple[str, Tensor]], group: dist.ProcessGroup) -> str:
    """Describe non-finite gradients: the first in the model's order, and how many more.

    Collective: every rank of ``group`` calls it when the global norm is not finite.
    """
    bad = [name for name, gradient in named if not torch.isfinite(gradient).all()]
    by_rank: list[list[str]] = [bad] * group.size()
    dist.all_gather_object(by_rank, bad, group=group)
    names = list(dict.fromkeys(name for names in by_rank for name in names))
    which = f"of {names[0]!r}" if names else "norm"
    also = f" (and of {len(names) - 1} more parameters)" if len(names) > 1 else ""
    return f"the gradient {which}{also} is not finite"

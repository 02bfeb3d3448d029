"""The global norm of gradients that lie in parts on several ranks, and clipping by it."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dsengine.comm.devices import device_for
from dsengine.foreach import foreach_mul_, foreach_norm

EPSILON = 1e-6
"""Added to the norm when the clipping factor is computed, as DeepSpeed and torch do."""


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

"""The global norm of gradients that lie in parts on several ranks, and clipping by it."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from dsengine.foreach import foreach_mul_, foreach_norm

EPSILON = 1e-6
"""Added to the norm when the clipping factor is computed, as DeepSpeed and torch do."""


@torch.no_grad()
def global_norm(gradients: Sequence[Tensor], group: dist.ProcessGroup | None) -> float:
    """Return the 2-norm over all gradients; parts of them are summed over ``group``.

    Norms are taken per tensor in its own precision and summed in float64. Not finite when
    any gradient is not.
    """
    if gradients:
        norms = torch.stack(foreach_norm(gradients)).double()
        total = norms.square_().sum()
    else:
        total = torch.zeros((), dtype=torch.float64, device=_device(group))
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
    if factor != 1.0 and gradients:
        foreach_mul_(gradients, factor)


def _device(group: dist.ProcessGroup | None) -> torch.device:
    """Where a collective of ``group`` expects its tensors."""
    if group is not None and dist.get_backend(group) == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")

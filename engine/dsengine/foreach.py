"""Torch's multi-tensor operations, which it exports without types under private names."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

_torch = cast(Any, torch)


def foreach_norm(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The 2-norm of each tensor, as a scalar tensor."""
    return list(_torch._foreach_norm(list(tensors), 2.0))


def foreach_mul_(tensors: Sequence[Tensor], factor: float) -> None:
    _torch._foreach_mul_(list(tensors), factor)


def foreach_copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target, casting where their dtypes differ."""
    _torch._foreach_copy_(list(targets), list(sources))


def foreach_lerp(starts: Sequence[Tensor], ends: Sequence[Any], weight: float) -> list[Tensor]:
    """``start + weight (end - start)`` of each pair."""
    return list(_torch._foreach_lerp(list(starts), list(ends), weight))


def foreach_lerp_(starts: Sequence[Tensor], ends: Sequence[Any], weight: float) -> None:
    _torch._foreach_lerp_(list(starts), list(ends), weight)


def foreach_step_by_sign_(
    targets: Sequence[Tensor], directions: Sequence[Tensor], factor: float
) -> None:
    """Add ``factor`` times the sign of each direction to its target; directions are used up."""
    _torch._foreach_sign_(list(directions))
    _torch._foreach_add_(list(targets), list(directions), alpha=factor)

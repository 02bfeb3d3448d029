"""Workaround for gloo with ranks that share a GPU."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group  # pyright: ignore[reportPrivateImportUsage]

_library = torch.library.Library("_c10d_functional", "IMPL")


def all_gather_with_lists() -> None:
    """Gather DTensors with lists of tensors.

    torch's own implementation makes gloo read GPU memory as host memory.
    """
    _library.impl("all_gather_into_tensor", _gathered, "CUDA")


def _gathered(tensor: Tensor, ranks: int, name: Any) -> Tensor:
    parts = [torch.empty_like(tensor) for _ in range(ranks)]
    dist.all_gather(parts, tensor.contiguous(), group=_resolve_process_group(name))
    return torch.cat(parts)

"""Tensors for torch.save."""

from typing import Any

import torch
from torch.utils._pytree import tree_map_only


def clone_tensors_for_torch_save(item: Any, device: torch.device | str = "cpu") -> Any:
    """Return ``item`` with all its tensors copied to ``device``, at any depth.

    torch.save would store a view with its whole storage.
    """
    return tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach().to(device, copy=True).clone(), item
    )


__all__ = ["clone_tensors_for_torch_save"]

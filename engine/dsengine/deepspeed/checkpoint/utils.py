"""Tensors made ready for torch.save."""

from typing import Any

import torch
from torch.utils._pytree import tree_map_only


def clone_tensors_for_torch_save(item: Any, device: torch.device | str = "cpu") -> Any:
    """Return ``item`` with copies on ``device`` in the place of all tensors, at any depth.

    A view would be saved with everything else that lies in its storage.
    """
    return tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach().to(device, copy=True).clone(), item
    )


__all__ = ["clone_tensors_for_torch_save"]

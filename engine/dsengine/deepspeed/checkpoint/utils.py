"""Tensors for torch.save."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from dsengine.parameters.shards import full_tensor_of, is_shard


def clone_tensors_for_torch_save(item: Any, device: torch.device | str = "cpu") -> Any:
    """Return ``item`` with all its tensors copied to ``device``, at any depth.

    torch.save would store a view with its whole storage. Parts of split layers and divided experts
    are gathered: with them it is collective.
    """

    def cloned(tensor: Any) -> Tensor:
        if isinstance(tensor, DTensor) and not is_shard(tensor):
            tensor = full_tensor_of(tensor)
        return tensor.detach().to(device, copy=True).clone()

    return tree_map_only(Tensor, cloned, item)


__all__ = ["clone_tensors_for_torch_save"]

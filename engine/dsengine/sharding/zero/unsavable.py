"""An error for saving shards as if they were full weights.

[Note: saving shards]
At stage 3 ``state_dict()`` returns this rank's shards as DTensors, except of persistent parameters,
which are full; at every stage, this rank's parts of split layers and divided experts. A script that
saves it on rank 0 alone, as it would an ordinary model, would lose the other ranks' shards:
torch.save would write only rank 0's, and safetensors fails with an error about its storage. So
torch.save checks for such shards before it opens the file, and a shard's storage raises the same
explanation where safetensors reads its address, which is before it writes. Copies of shards, such
as ``value.cpu()``, are recognized by their mesh. torch.distributed.checkpoint reads local tensors
and is not affected.
"""

from functools import wraps
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from dsengine import topology
from dsengine.sharding.zero.gathered import GatheredShard

_meshes: list[ReferenceType[DeviceMesh]] = []
"""Over which engines have sharded or split parameters in this process."""
_save = torch.save
_untyped_storage: Any = Tensor.untyped_storage


class ShardedSaveError(RuntimeError):
    """Weights were to be saved of which each rank has only shards."""

    def __init__(self) -> None:
        super().__init__(
            f"rank {topology.rank()} cannot save these weights, and has written none: each "
            "rank has only its shards (ZeRO stage 3, split layers, divided experts). On all ranks, "
            "call engine.save_16bit_model(folder), or gather first: state = "
            "accelerator.get_state_dict(model), then model.save_pretrained(folder, "
            "state_dict=state) on rank 0; or save on rank 0 inside `with "
            "zero.GatheredParameters(list(model.parameters())):`. To resume training, use "
            "engine.save_checkpoint(folder)"
        )


def refuse_saving_shards(parameters: list[Tensor]) -> None:
    """Make saving of these parameters' shards raise ShardedSaveError in this process."""
    for parameter in parameters:
        if isinstance(parameter, DTensor) and not _is_known(parameter.device_mesh):
            _meshes.append(ref(parameter.device_mesh))
    if _meshes and torch.save is _save:
        torch.save = _checked_save
        replaced: Any = DTensor
        replaced.untyped_storage = _storage


def _is_known(mesh: DeviceMesh) -> bool:
    return any(known() is mesh for known in _meshes)


def _is_shard(value: Any) -> bool:
    return (
        isinstance(value, DTensor)
        and not isinstance(value, GatheredShard)
        and not all(placement.is_replicate() for placement in value.placements)
        and _is_known(value.device_mesh)
    )


@wraps(_save)
def _checked_save(obj: Any, *args: Any, **kwargs: Any) -> Any:
    for leaf in tree_leaves(obj):
        values = leaf.parameters() if isinstance(leaf, nn.Module) else (leaf,)
        if any(map(_is_shard, values)):
            raise ShardedSaveError
    return _save(obj, *args, **kwargs)


def _storage(self: DTensor) -> torch.UntypedStorage:
    storage = _untyped_storage(self)
    if _is_shard(self):
        storage.data_ptr = _refuse
    return storage


def _refuse() -> int:
    raise ShardedSaveError

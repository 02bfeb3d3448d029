"""Tensors, their storages, and autograd.

Public constructors of DTensor (``from_local``, ``distribute_tensor``) move the shard to the mesh's
device; shards of an offloaded optimizer are on the host. The public accessor (``to_local``) returns
a new tensor with its own version counter. Multi-tensor operations are exported untyped, under
private names.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.variable import Variable
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, _StridedShard

_torch = cast(Any, torch)


@torch.no_grad()
def as_shard(part: Tensor, like: DTensor) -> DTensor:
    """Return this rank's ``part`` as a DTensor sharded like ``like``, in the same memory."""
    spec = like._spec
    if spec.tensor_meta is None:
        raise ValueError("expected a DTensor with shape and dtype")
    spec = replace(spec, tensor_meta=spec.tensor_meta._replace(dtype=part.dtype))
    return DTensor(part.detach(), spec, requires_grad=False)


def local_part(tensor: Tensor) -> Tensor:
    """Return the local tensor of a DTensor, the same object, or the tensor itself."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def strided(dimension: int, factor: int) -> Placement:
    """Return torch's placement of a dimension with ``factor`` matrices, each split."""
    return _StridedShard(dimension, split_factor=factor)


def split_factor(placement: Placement) -> tuple[int, int] | None:
    """Return dimension and split factor of a strided placement; None for others."""
    if not isinstance(placement, _StridedShard):
        return None
    return placement.dim, int(placement.split_factor)


def unstrided(part: Tensor, like: DTensor) -> DTensor:
    """Return ``part`` as a DTensor like ``like``, with its ``tensor`` axis split in one piece."""
    axes = zip(like.device_mesh.mesh_dim_names or (), like.placements, strict=True)
    placements = tuple(
        Shard(strided.dim) if name == "tensor" and isinstance(strided, _StridedShard) else strided
        for name, strided in axes
    )
    meta = like._spec.tensor_meta
    meta = None if meta is None else meta._replace(dtype=part.dtype)
    spec = DTensorSpec(like.device_mesh, placements, tensor_meta=meta)
    return DTensor(part.detach(), spec, requires_grad=False)


def shard_slices(like: DTensor) -> tuple[slice, ...]:
    """Return this rank's slice of the full tensor, axis by axis."""
    shape, offset = compute_local_shape_and_global_offset(
        like.shape, like.device_mesh, like.placements
    )
    return tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))


def is_functorch_tensor(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a ``torch.func`` tensor, whose backward is not that of a loss."""
    return _torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def version_of(tensor: Tensor) -> int:
    """Return how often the tensor's memory was written to."""
    return tensor._version


def preserve_versions(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Return a context in which writes to ``tensors`` do not change version counters."""
    return cast(Any, torch.autograd)._unsafe_preserve_version_counter(tuple(tensors))


def storage_key(tensor: Tensor | torch.UntypedStorage) -> int:
    """Return a key of the tensor's storage. ``data_ptr`` is 0 for every empty storage."""
    storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else tensor
    return storage._cdata


def is_in_backward() -> bool:
    """Whether this thread is inside a backward."""
    return _torch._C._current_graph_task_id() != -1


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Within a backward, call ``callback`` once all of its gradients are computed."""
    cast(Any, Variable)._execution_engine.queue_callback(callback)


plain_tensors: Any = _torch._C.DisableTorchFunctionSubclass
"""A context in which Tensor subclasses do not dispatch to ``__torch_function__``.

The public ``DisableTorchFunction`` also disables modes such as ``torch.device``.
"""

backward_hooks_of: Any = _torch.Tensor._backward_hooks.__get__
"""The attribute of parameters that ``deepcopy`` and pickle read."""

READ_OF_A_VALUE: Any = _torch.ops.aten._local_scalar_dense.default
"""The operator behind ``item()`` and ``bool()``."""


@contextmanager
def observe_resizes(seen: Callable[[torch.UntypedStorage, int], None]) -> Iterator[None]:
    """Inside, call ``seen(storage, bytes before)`` after each in-place resize of a storage.

    ``fully_shard`` frees and refills gathered parameters this way, without the dispatcher.
    """
    original = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        before = storage.nbytes()
        result = original(storage, size)
        seen(storage, before)
        return result

    with replaced(torch.UntypedStorage, "resize_", resize_):
        yield


# Multi-tensor operations, which torch exports untyped under private names


def foreach_norm(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the 2-norm of each tensor as a scalar tensor."""
    return list(_torch._foreach_norm(list(tensors), 2.0))


def foreach_mul_(tensors: Sequence[Tensor], factor: float) -> None:
    _torch._foreach_mul_(list(tensors), factor)


def foreach_copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target, casting if dtypes differ."""
    _torch._foreach_copy_(list(targets), list(sources))


def foreach_lerp(starts: Sequence[Tensor], ends: Sequence[Any], weight: float) -> list[Tensor]:
    """Return ``start + weight * (end - start)`` of each pair."""
    return list(_torch._foreach_lerp(list(starts), list(ends), weight))


def foreach_lerp_(starts: Sequence[Tensor], ends: Sequence[Any], weight: float) -> None:
    _torch._foreach_lerp_(list(starts), list(ends), weight)


def foreach_step_by_sign_(
    targets: Sequence[Tensor], directions: Sequence[Tensor], factor: float
) -> None:
    """Add ``factor`` times each direction's sign to its target; overwrites ``directions``."""
    _torch._foreach_sign_(list(directions))
    _torch._foreach_add_(list(targets), list(directions), alpha=factor)


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Set ``holder.name`` to ``value`` inside."""
    original = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, original)

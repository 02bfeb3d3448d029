"""Process groups and meshes.

Public: ranks and backend name. Private: the devices a group supports, the store it was created
with, how many collectives it has issued, aborting a hung communicator, broadcasting many tensors
at once, gathering many in one launch, the state of gloo's threads, the gradient of
``torch.distributed.nn.all_gather``.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from dsengine.torch_private.dry_runs import is_fake

all_gather_flat: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Gathers every rank's flat tensor into one. Public, but renamed in 2.13, where the old name warns.
"""


def supports_device(group: dist.ProcessGroup, device: str) -> bool:
    """Whether ``group`` supports tensors of that device type."""
    return torch.device(device) in group._device_types


def default_store() -> Any:
    """Return the store of the default group."""
    return dist.distributed_c10d._get_default_store()


def flattened(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """Return the one axis ``name`` over all axes of ``mesh``. Collective on the first call."""
    return mesh._flatten(name)


def unflattened(mesh: DeviceMesh, axes: Mapping[str, int]) -> DeviceMesh:
    """Return the one axis of ``mesh`` as several ``axes`` of these sizes. Collective."""
    return mesh._unflatten(0, tuple(axes.values()), tuple(axes))


def concatenated(meshes: list[DeviceMesh]) -> DeviceMesh:
    """Return the axes of several parts of one mesh."""
    return DeviceMesh._concatenate(meshes)


def broadcast_coalesced(
    tensors: list[Tensor], bytes_at_once: int, group: dist.ProcessGroup
) -> None:
    """Broadcast the values of the group's first rank, many tensors per message."""
    cast(Any, dist)._broadcast_coalesced(group, tensors, bytes_at_once, 0)


def start_gathers(pairs: Sequence[tuple[Tensor, Tensor]], group: dist.ProcessGroup) -> Any:
    """Start gathers of flat tensors as one collective; return its work, which has ``wait``.

    ``pairs``: each a full tensor (ranks * n,) and this rank's shard (n,), which may be its slice.
    Dtypes may differ. Over NCCL this is one launch. torch passes what is inside ``with`` to
    ``all_gather_single_coalesced``, before 2.13 ``allgather_into_tensor_coalesced``.
    """
    with dist.distributed_c10d._coalescing_manager(group, async_ops=True) as gathers:
        for full, own in pairs:
            all_gather_flat(full, own, group=group)
    return gathers


def issued_collectives() -> dict[str, int]:
    """Return how many collectives this process has issued, by group and transport.

    A rank's host may run ahead of its GPU, so an issued collective may not have begun. Names are
    the same on all ranks of a group. gloo also counts messages; a transport that does not count is
    left out.
    """
    issued: dict[str, int] = {}
    for group, name in list(dist.distributed_c10d._world.pg_names.items()):
        if (size := group.size()) == 1:
            continue
        for device in group._device_types:
            with suppress(RuntimeError):
                backend = cast(Any, group._get_backend(device))
                count = backend._get_sequence_number_for_group()
                issued[f"group {name} of {size} ranks, {backend.name()}"] = count
    return issued


def abort_communicators() -> None:
    """Make accelerator collectives that wait for a lost rank fail with an error. May hang.

    All within one NCCL group, as torch's own abort: one by one, each could wait for another.
    """
    backends: list[Any] = []
    for group in list(dist.distributed_c10d._world.pg_names):
        with suppress(RuntimeError):  # a group without an accelerator backend
            backends.append(group._get_backend(torch.device("cuda")))
    groups = [backend for backend in backends if hasattr(backend, "_group_start")]
    if groups:
        groups[0]._group_start()
    try:
        for backend in backends:
            with suppress(RuntimeError):
                backend.abort()
    finally:
        if groups:
            groups[0]._group_end()


GLOO_THREAD = "pt_gloo_runloop"
"""Name of the threads that run gloo's collectives, where threads have names (Linux)."""


def arm_reducer(parallel: DistributedDataParallel, roots: Sequence[Tensor]) -> None:
    """Make the coming backward of ``roots`` reduce, whatever the last forward set.

    The public way is a forward outside ``no_sync``.
    """
    if not any(map(is_fake, roots)):  # it reads values, in the first backward
        parallel.reducer._rebuild_buckets()
    parallel.reducer.prepare_for_backward([*roots])


def all_to_all_slices(slices: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send slice i (of dimension 0) to rank i and return the received slices; differentiable.

    The public collective has no derivative, and an autograd function around it gets zero gradients
    under torch.compile.
    """
    ranks = group.size()
    sizes = [slices.numel() // ranks] * ranks
    received = functional.all_to_all_single_autograd(slices.flatten(), sizes, sizes, group)
    return functional.wait_tensor(received).view(slices.shape)


def all_to_all_rows(
    rows: Tensor, received: list[int], sent: list[int], group: dist.ProcessGroup
) -> Tensor:
    """Send ``sent[i]`` rows to rank i and return ``received[i]`` rows of each; differentiable."""
    found = functional.all_to_all_single_autograd(rows, received, sent, group)
    return functional.wait_tensor(found)


def correct_all_gather_gradient() -> None:
    """Make the gradient of ``torch.distributed.nn.functional.all_gather`` correct over gloo.

    transformers' Trainer gathers losses with it. torch's own passes a rank's number in the group as
    the number among all ranks: the backward fails in every group but the first.
    """
    gather: Any = import_module("torch.distributed.nn.functional")._AllGather
    backward = gather.backward
    if backward.__module__ != __name__:

        def corrected(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
            # Among all ranks (None) the numbers are the same.
            if ctx.group is None or dist.get_backend(ctx.group) != dist.Backend.GLOO:
                return backward(ctx, *gradients)
            return None, all_to_all_slices(torch.stack(gradients), ctx.group).sum(0)

        gather.backward = staticmethod(corrected)


COLLECTIVES: Mapping[str, str] = {
    "allreduce_": "all_reduce",
    "alltoall_base_": "all_to_all_single",
    "allreduce_coalesced_": "all_reduce",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor",
    "allgather_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor",
    "reduce_scatter_": "reduce_scatter",
    "broadcast_": "broadcast",
    "barrier": "barrier",
}
"""Public names by dispatcher name."""
_COALESCED = frozenset(name for name in COLLECTIVES if name.endswith("_coalesced_"))


def collective_of(operation: Any) -> str | None:
    """Return the dispatcher's name of a collective or message, None for other operators."""
    communicates = operation.namespace in ("c10d", "_c10d_functional")
    return operation._opname if communicates else None


def arguments_of_each(operation: str, arguments: Sequence[Any]) -> list[Sequence[Any]]:
    """Return the arguments of each collective that a dispatched operation runs.

    A coalesced operation has lists of equal length, with one tensor for each collective.
    """
    if operation not in _COALESCED:
        return [arguments]
    return [*zip(*(each for each in arguments if isinstance(each, (list, tuple))), strict=True)]

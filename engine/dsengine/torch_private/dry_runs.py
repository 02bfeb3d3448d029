"""Fake tensors and process groups, for dry runs.

Fake tensors are public only as a debugging aid of torch.compile; there is no public fake group.
torch implements all collectives that the engine uses for fake tensors, except coalesced gathers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dsengine.torch_private.tensors import replaced

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode


def fake_tensors() -> "FakeTensorMode":
    """Return a mode in which tensors have no data; real tensors become fake when used."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(tensor: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


GATHERS = "allgather_into_tensor_coalesced_"


@contextmanager
def _fake_coalesced_gathers() -> Iterator[None]:
    """Inside, coalesced gathers of fake tensors do nothing."""
    from torch._C._distributed_c10d import FakeWork

    with torch.library._scoped_library("c10d", "IMPL", "Meta") as library:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{GATHERS}", "Meta"):
            library.impl(GATHERS, lambda *_: FakeWork().boxed())
        yield


@contextmanager
def fake_process_group(rank: int, ranks: int, backend: str) -> Iterator[None]:
    """Inside, create a default group whose collectives do nothing, on a machine without a GPU.

    ``torch.distributed.get_backend``, which the engine queries, returns ``backend``.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
    try:
        with (
            replaced(dist, "get_backend", lambda *_: backend),
            replaced(torch.accelerator, "current_accelerator", lambda *_, **__: None),
            replaced(torch.cuda, "is_available", lambda: False),
            _fake_coalesced_gathers(),
        ):
            yield
    finally:
        dist.destroy_process_group()


MESH_INFO = "_get_post_forward_mesh_info"


@contextmanager
def real_reshard_meshes() -> Iterator[None]:
    """Inside, ``fully_shard`` creates meshes for resharding to fewer ranks from real tensors, under
    fake tensors too."""
    from torch.distributed.fsdp._fully_shard import _fully_shard
    from torch.utils._python_dispatch import _disable_current_modes

    create = getattr(_fully_shard, MESH_INFO)

    def create_real(*arguments: Any) -> Any:
        with _disable_current_modes():
            return create(*arguments)

    with replaced(_fully_shard, MESH_INFO, create_real):
        yield

"""Communication under the names that training scripts import: ``import dsengine.comm as dist``.

The operations are torch.distributed's own, with ``init_distributed`` for every launcher, and a few
names that torch does not have.
"""

import os

from torch.distributed import (
    P2POp,
    ProcessGroup,
    ReduceOp,
    all_gather,
    all_gather_into_tensor,
    all_gather_object,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    batch_isend_irecv,
    broadcast,
    broadcast_object_list,
    destroy_process_group,
    gather,
    get_global_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    irecv,
    is_available,
    is_initialized,
    isend,
    monitored_barrier,
    new_group,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
    send,
)

from dsengine.communication.devices import get_backend
from dsengine.communication.environment import Placement, discover, local_rank_argument
from dsengine.communication.start import default_timeout, init_distributed, usable_backend
from dsengine.topology import all_ranks

allgather_fn = all_gather_into_tensor
reduce_scatter_fn = reduce_scatter_tensor
inference_all_reduce = all_reduce


def get_world_group() -> ProcessGroup:
    """Return the group of all ranks."""
    return all_ranks()


def get_all_ranks_from_group(group: ProcessGroup | None = None) -> list[int]:
    """Return the global ranks of a group's members, in order."""
    return get_process_group_ranks(group)


def has_all_gather_into_tensor() -> bool:
    """Return True, as every supported release of torch has it."""
    return True


def get_local_rank() -> int:
    """Return this process's rank on its node."""
    return int(os.environ.get("LOCAL_RANK", "0"))


__all__ = [
    "P2POp",
    "Placement",
    "ProcessGroup",
    "ReduceOp",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "allgather_fn",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "default_timeout",
    "destroy_process_group",
    "discover",
    "gather",
    "get_all_ranks_from_group",
    "get_backend",
    "get_global_rank",
    "get_local_rank",
    "get_rank",
    "get_world_group",
    "get_world_size",
    "has_all_gather_into_tensor",
    "inference_all_reduce",
    "init_distributed",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "local_rank_argument",
    "monitored_barrier",
    "new_group",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_fn",
    "reduce_scatter_tensor",
    "scatter",
    "send",
    "usable_backend",
]

"""Process groups: all ranks are data parallel, without other kinds of parallelism."""

import torch.distributed as dist


def initialize(ep_size: int = 1, mpu: object = None) -> None:
    """Do nothing for expert parallel size 1. Raises ValueError for others."""
    del mpu
    if ep_size != 1:
        raise ValueError(
            f"groups.initialize(ep_size={ep_size}): expert parallelism is not supported: keep "
            "experts as ordinary modules with zero_optimization.stage 3"
        )


def get_data_parallel_group() -> "dist.ProcessGroup | None":
    """Return the data-parallel group."""
    return dist.group.WORLD


def get_data_parallel_world_size() -> int:
    return dist.get_world_size()


def get_data_parallel_rank() -> int:
    return dist.get_rank()


def one_rank() -> int:
    """Return 1: tensor and sequence parallelism are not supported."""
    return 1


def first_rank() -> int:
    """Return 0, the only rank of a group of one."""
    return 0


_get_data_parallel_group = _get_sequence_data_parallel_group = get_data_parallel_group
_get_data_parallel_world_size = _get_sequence_data_parallel_world_size = (
    get_data_parallel_world_size
)
_get_data_parallel_rank = _get_sequence_data_parallel_rank = get_data_parallel_rank
get_model_parallel_world_size = _get_model_parallel_world_size = one_rank
get_tensor_model_parallel_world_size = _get_sequence_parallel_world_size = one_rank
get_model_parallel_rank = get_tensor_model_parallel_rank = first_rank
_get_sequence_parallel_rank = first_rank

__all__ = [
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_model_parallel_rank",
    "get_model_parallel_world_size",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_world_size",
    "initialize",
]

"""Which ranks share what: all of them the data, none of them a tensor, a sequence or experts."""

import torch.distributed as dist


def initialize(ep_size: int = 1, mpu: object = None) -> None:
    """Nothing for one rank of each expert. Raises ValueError for more."""
    del mpu
    if ep_size != 1:
        raise ValueError(
            f"groups.initialize(ep_size={ep_size}): experts are not placed on ranks of their own: "
            "keep them ordinary modules under zero_optimization.stage 3"
        )


def get_data_parallel_group() -> "dist.ProcessGroup | None":
    """Return the group of the ranks that each train on their own part of the data."""
    return dist.group.WORLD


def get_data_parallel_world_size() -> int:
    return dist.get_world_size()


def get_data_parallel_rank() -> int:
    return dist.get_rank()


def one_rank() -> int:
    """Return 1: parallelism over tensors and sequences is not offered."""
    return 1


def first_rank() -> int:
    """Return 0: a group of one has no other rank."""
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

"""Process groups of the engine built last, under DeepSpeed's names; before it, of all ranks."""

import torch.distributed as dist

from dsengine.topology import current


def initialize(ep_size: int = 1, mpu: object = None) -> None:
    """Do nothing for expert parallel size 1. Raises ValueError for others."""
    del mpu
    if ep_size != 1:
        raise ValueError(
            f"groups.initialize(ep_size={ep_size}): expert parallelism is not supported: keep "
            "experts as ordinary modules with zero_optimization.stage 3"
        )


def get_data_parallel_group() -> dist.ProcessGroup:
    """Return the ranks with different samples."""
    return current().group("samples")


def get_data_parallel_world_size() -> int:
    return current().size("samples")


def get_data_parallel_rank() -> int:
    return current().rank("samples")


def get_model_parallel_world_size() -> int:
    return current().size("tensor")


def get_model_parallel_rank() -> int:
    return current().rank("tensor")


def _get_sequence_parallel_group() -> dist.ProcessGroup:
    return current().group("sequence")


def _get_sequence_parallel_world_size() -> int:
    return current().size("sequence")


def _get_sequence_parallel_rank() -> int:
    return current().rank("sequence")


def _get_sequence_data_parallel_group() -> dist.ProcessGroup:
    return current().group("gradients")


def _get_sequence_data_parallel_world_size() -> int:
    return current().size("gradients")


def _get_sequence_data_parallel_rank() -> int:
    return current().rank("gradients")


_get_data_parallel_group = get_data_parallel_group
_get_data_parallel_world_size = get_data_parallel_world_size
_get_data_parallel_rank = get_data_parallel_rank
_get_model_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_rank = get_model_parallel_rank

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

"""Process groups of sequence parallelism, under DeepSpeed's names: the ``mpu`` of Ulysses."""

from dsconfig import Degrees, Mesh, nearest_degree
from dsengine.communication.agreement import check_same_call
from dsengine.communication.devices import device_of_rank
from dsengine.deepspeed.utils.groups import (
    _get_sequence_data_parallel_group as get_sequence_data_parallel_group,
)
from dsengine.deepspeed.utils.groups import (
    _get_sequence_data_parallel_rank as get_sequence_data_parallel_rank,
)
from dsengine.deepspeed.utils.groups import (
    _get_sequence_data_parallel_world_size as get_sequence_data_parallel_world_size,
)
from dsengine.deepspeed.utils.groups import (
    _get_sequence_parallel_group as get_sequence_parallel_group,
)
from dsengine.deepspeed.utils.groups import (
    _get_sequence_parallel_rank as get_sequence_parallel_rank,
)
from dsengine.deepspeed.utils.groups import (
    _get_sequence_parallel_world_size as get_sequence_parallel_world_size,
)
from dsengine.topology import Topology, current, set_current, world_size


def initialize_sequence_parallel(sequence_parallel_size: int) -> None:
    """Divide the ranks into groups of ``sequence_parallel_size`` neighbors. Collective.

    Raises ValueError on every rank if the size is below 2, does not divide the ranks or differs
    between them.
    """
    ranks = world_size()
    if ranks > 1:
        check_same_call(f"initialize_sequence_parallel({sequence_parallel_size})")
    if sequence_parallel_size < 2 or ranks % sequence_parallel_size:
        raise ValueError(
            f"sequence_parallel_size {sequence_parallel_size} does not divide {ranks} ranks: use "
            f"{nearest_degree(sequence_parallel_size, ranks)}"
        )
    if current().size("sequence") != sequence_parallel_size:
        degrees = Degrees(sequence=sequence_parallel_size)
        set_current(Topology(Mesh.over(ranks, degrees, sharded=True), device_of_rank().type))


get_model_parallel_rank = get_sequence_parallel_rank
get_model_parallel_world_size = get_sequence_parallel_world_size
get_model_parallel_group = get_sequence_parallel_group

__all__ = [
    "get_model_parallel_group",
    "get_model_parallel_rank",
    "get_model_parallel_world_size",
    "get_sequence_data_parallel_group",
    "get_sequence_data_parallel_rank",
    "get_sequence_data_parallel_world_size",
    "get_sequence_parallel_group",
    "get_sequence_parallel_rank",
    "get_sequence_parallel_world_size",
    "initialize_sequence_parallel",
]

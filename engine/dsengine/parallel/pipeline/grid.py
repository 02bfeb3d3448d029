"""The ranks and process groups of a pipeline, as scripts query them."""

from collections.abc import Mapping
from typing import Self

import torch.distributed as dist

from dsengine import topology as engine_topology
from dsengine.parallel.pipeline.process_topology import PipeDataParallelTopology, ProcessTopology


class PipelineParallelGrid:
    """This rank's place in a topology, and its groups along "pipe" and "data".

    Construction is collective, and creates the groups. Raises ValueError for a topology of other
    ranks.
    """

    def __init__(
        self,
        topology: ProcessTopology | None = None,
        process_group: dist.ProcessGroup | None = None,
        groups: Mapping[str, dist.ProcessGroup] | None = None,
    ) -> None:
        """``groups``: existing ones, by axis. ``process_group`` is accepted and unused."""
        del process_group
        ranks = engine_topology.all_ranks()
        self._topo = topology or PipeDataParallelTopology(num_pp=1, num_dp=ranks.size())
        if self._topo.world_size() != ranks.size():
            raise ValueError(
                f"the topology has {self._topo.world_size()} ranks, but {ranks.size()} are running"
            )
        self._groups = groups or {
            axis: engine_topology.new_group_of(self._topo.get_axis_comm_lists(axis))
            for axis in ("pipe", "data")
        }
        place = self._topo.get_coord(ranks.rank())
        self.global_rank, self.world_size = ranks.rank(), ranks.size()
        self.stage_id, self.data_parallel_id = place.pipe, place.data
        self.pipe_parallel_size = self._topo.get_dim("pipe")
        self.data_parallel_size = self._topo.get_dim("data")
        self.model_parallel_size = max(1, self._topo.get_dim("model"))

    @classmethod
    def of(cls, topology: engine_topology.Topology) -> Self:
        """Return the grid of an engine's ranks, with its groups."""
        sizes = {"num_pp": topology.size("pipeline"), "num_dp": topology.size("samples")}
        groups = {"pipe": topology.group("pipeline"), "data": topology.group("samples")}
        return cls(PipeDataParallelTopology(**sizes), groups=groups)

    def topology(self) -> ProcessTopology:
        return self._topo

    def stage_to_global(self, stage_id: int, **kwargs: int) -> int:
        """Return the rank at a stage with this rank's position along the other axes."""
        place = self._topo.get_coord(self.global_rank)
        own = dict(zip(self._topo.get_axis_names(), place, strict=True))
        return self._topo.get_rank(**(own | {"pipe": stage_id} | kwargs))

    def get_stage_id(self) -> int:
        return self.stage_id

    def get_data_parallel_id(self) -> int:
        return self.data_parallel_id

    def get_global_rank(self) -> int:
        return self.global_rank

    def get_pipe_parallel_rank(self) -> int:
        return self.stage_id

    def get_pipe_parallel_world_size(self) -> int:
        return self.pipe_parallel_size

    def get_pipe_parallel_group(self) -> dist.ProcessGroup:
        return self._groups["pipe"]

    def get_data_parallel_rank(self) -> int:
        return self.data_parallel_id

    def get_data_parallel_world_size(self) -> int:
        return self.data_parallel_size

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self._groups["data"]

    def get_slice_parallel_rank(self) -> int:
        """Return the rank within those that share a layer."""
        return getattr(self._topo.get_coord(self.global_rank), "model", 0)

    def get_slice_parallel_world_size(self) -> int:
        return self.model_parallel_size

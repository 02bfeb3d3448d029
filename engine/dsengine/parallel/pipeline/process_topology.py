"""Ranks along named axes, as scripts of pipelines build and query them."""

from collections import namedtuple
from collections.abc import Sequence
from itertools import product
from typing import Any


class ProcessTopology:
    """Ranks along ``axes`` of sizes ``dims``, numbered along the last axis first."""

    def __init__(self, axes: Sequence[str], dims: Sequence[int]) -> None:
        self.axes, self.dims = list(axes), list(dims)
        self.ProcessCoord = namedtuple("ProcessCoord", self.axes)
        """A rank's position along each axis."""
        places = [self.ProcessCoord(*place) for place in product(*map(range, self.dims))]
        self.mapping = {place: rank for rank, place in enumerate(places)}
        self._places = places

    def get_rank(self, **coord_kwargs: int) -> int:
        """Return the rank at a position. Raises ValueError unless every axis is given."""
        if coord_kwargs.keys() != set(self.axes):
            raise ValueError(f"get_rank() requires one index for each axis of {self.axes}")
        place = self.ProcessCoord(**coord_kwargs)
        if place not in self.mapping:
            raise ValueError(f"{place} is outside of the axes {self.axes} of sizes {self.dims}")
        return self.mapping[place]

    def get_axis_names(self) -> list[str]:
        return self.axes

    def get_rank_repr(
        self,
        rank: int,
        omit_axes: Sequence[str] = ("data", "pipe"),
        inner_sep: str = "_",
        outer_sep: str = "-",
    ) -> str:
        """Return a rank's position as text, such as ``model_00``."""
        place = self.get_coord(rank)
        shown = [axis for axis in self.axes if axis not in omit_axes]
        return outer_sep.join(f"{axis}{inner_sep}{getattr(place, axis):02d}" for axis in shown)

    def get_dim(self, axis: str) -> int:
        """Return the ranks along an axis; 0 for an unknown one."""
        return self.dims[self.axes.index(axis)] if axis in self.axes else 0

    def get_coord(self, rank: int) -> Any:
        """Return the position of a rank. Raises ValueError for an unknown one."""
        if not 0 <= rank < len(self._places):
            raise ValueError(f"rank {rank} is not one of {len(self._places)} ranks")
        return self._places[rank]

    def get_axis_comm_lists(self, axis: str) -> list[list[int]]:
        """Return the groups of ranks that differ only along ``axis``; empty for an unknown one."""
        if axis not in self.axes:
            return []
        others = [range(self.get_dim(each)) for each in self.axes if each != axis]
        names = [each for each in self.axes if each != axis]
        return [
            self.filter_match(**dict(zip(names, place, strict=True))) for place in product(*others)
        ]

    def filter_match(self, **filter_kwargs: int) -> list[int]:
        """Return the ranks at these positions along the given axes."""
        wanted = filter_kwargs.items()
        return [
            rank
            for rank, place in enumerate(self._places)
            if all(getattr(place, axis) == index for axis, index in wanted)
        ]

    def get_axis_list(self, axis: str, idx: int) -> list[int]:
        """Return the ranks at one position along an axis."""
        return self.filter_match(**{axis: idx})

    def world_size(self) -> int:
        return len(self._places)

    def __str__(self) -> str:
        return str(self.mapping)


class PipeDataParallelTopology(ProcessTopology):
    """Pipelines of ``num_pp`` stages; neighboring ranks are the ``num_dp`` copies of a stage."""

    def __init__(self, num_pp: int, num_dp: int) -> None:
        super().__init__(("pipe", "data"), (num_pp, num_dp))


class PipeModelDataParallelTopology(ProcessTopology):
    """The same with ``num_mp`` neighboring ranks that share each layer."""

    def __init__(self, num_pp: int, num_mp: int, num_dp: int) -> None:
        super().__init__(("pipe", "data", "model"), (num_pp, num_dp, num_mp))

"""zero.GatheredParameters: whole parameters for a while, on the objects a script holds.

A script may hold a parameter of a model built under ``zero.Init``, a shard of a stage-3 engine
(what ``engine.parameters()`` yields), a parameter that is whole at rest (stages 1 and 2), or one
from before ``initialize``. Each is whole inside, and each is brought up to date on leaving.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from dsengine.parameters.chunks import group_for
from dsengine.parameters.shards import part_of, whole_of
from dsengine.sharding.zero.partitioned import PartitionedParameter, partition, restore
from dsengine.sharding.zero.registry import Held, Lookup
from dsengine.sharding.zero.status import answers_of, tell_available
from dsengine.torch_private import local_part, plain_tensors


class WholeShard(DTensor):
    """A sharded parameter that, for a while, behaves as the whole tensor it belongs to."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        with plain_tensors():
            inputs: Any = (args, kwargs or {})
            args, kwargs = tree_map_only(WholeShard, lambda p: _WHOLE[id(p)], inputs)
            return func(*args, **cast(dict[str, Any], kwargs))


_WHOLE: dict[int, nn.Parameter] = {}
"""The whole tensor of each WholeShard, by its id; kept while it is one."""


class GatheredParameters:
    """Inside, the given parameters are whole on every rank.

    ``modifier_rank``: the rank whose changes are kept; None discards all changes. Collective:
    every rank enters and leaves. ``enabled=False`` does nothing.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | nn.Parameter | nn.Module,
        modifier_rank: int | None = None,
        fwd_module: Any = None,
        enabled: bool = True,
    ) -> None:
        del fwd_module
        if isinstance(params, nn.Module):
            params = params.parameters()
        elif isinstance(params, Tensor):
            params = [params]
        self._parameters = list({id(p): p for p in params}.values()) if enabled else []
        self._modifier_rank = modifier_rank
        self._leave: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        engines = Lookup()
        for parameter in self._parameters:
            if isinstance(parameter, WholeShard):
                continue  # gathered by an enclosing context, which will also divide it
            if isinstance(parameter, PartitionedParameter):
                self._gather_partitioned(parameter)
            elif isinstance(parameter, DTensor):
                self._gather_shard(cast(nn.Parameter, parameter))
            elif (held := engines.find(parameter)) is not None:
                self._watch_whole(parameter, held)

    def __exit__(self, *error: object) -> None:
        for leave in reversed(self._leave):
            leave()
        self._leave = []

    def _gather_partitioned(self, parameter: PartitionedParameter) -> None:
        piece, answers = parameter._piece, answers_of(parameter)
        restore(parameter)
        vars(parameter).update(answers)
        tell_available(parameter, True)

        def leave() -> None:
            _take_from(parameter.data, self._modifier_rank)
            partition(parameter)
            if self._modifier_rank is None:
                cast(PartitionedParameter, parameter)._piece = piece

        self._leave.append(leave)

    def _gather_shard(self, shard: nn.Parameter) -> None:
        kind = type(shard)
        sharded = cast(DTensor, shard.detach())
        piece = local_part(shard)  # its version tells others of the change
        whole = nn.Parameter(whole_of(sharded).clone(), shard.requires_grad)
        _WHOLE[id(shard)] = whole
        cast(Any, shard).__class__ = WholeShard
        tell_available(shard, True)

        def leave() -> None:
            cast(Any, shard).__class__ = kind
            tell_available(shard, False)
            del _WHOLE[id(shard)]
            if self._modifier_rank is not None:
                _take_from(whole.data, self._modifier_rank)
                _write_shard(sharded, piece, whole.data)

        self._leave.append(leave)

    def _watch_whole(self, parameter: nn.Parameter, held: Held) -> None:
        """A parameter with a shard elsewhere: bring it up to date, later write the shard."""
        was_empty = parameter.numel() == 0
        held.refresh(parameter)
        before = parameter.data.clone() if self._modifier_rank is None and not was_empty else None

        def leave() -> None:
            if self._modifier_rank is not None:
                _take_from(parameter.data, self._modifier_rank)
                held.write(parameter.data)
            elif before is not None:
                parameter.data.copy_(before)
            if was_empty:
                parameter.data = parameter.data.new_empty(0)

        self._leave.append(leave)


def _take_from(whole: Tensor, rank: int | None) -> None:
    if rank is not None and dist.get_world_size() > 1:
        dist.broadcast(whole, rank, group=group_for(whole))


@torch.no_grad()
def _write_shard(shard: DTensor, piece: Tensor, whole: Tensor) -> None:
    """Copy this rank's part of ``whole`` into ``piece``, the memory of ``shard``."""
    piece.copy_(part_of(whole, shard))

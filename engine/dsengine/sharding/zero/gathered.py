"""zero.GatheredParameters: whole parameters for a while, on the objects a script holds.

A script may hold a parameter of a model built under ``zero.Init``, a shard of a stage-3 engine
(what ``engine.parameters()`` yields), a parameter that is whole at rest (stages 1 and 2), or one
from before ``initialize``. Each is whole inside, and each is brought up to date on leaving.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from dsengine.parameters.chunks import group_for
from dsengine.parameters.shards import full_tensor_of
from dsengine.sharding.zero.dtype_view import write
from dsengine.sharding.zero.partitioned import (
    PartitionedParameter,
    intercepted,
    keep_fp32_where_unchanged,
    partition,
    restore,
    show_as,
)
from dsengine.sharding.zero.registry import Held, Lookup
from dsengine.sharding.zero.rounded import drop_rounding, round_parameter
from dsengine.sharding.zero.status import is_watched, partitioned_attributes, set_available
from dsengine.torch_private import version_of


def _on_whole(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if func is Tensor.__deepcopy__:
        return nn.Parameter.__deepcopy__(_WHOLE[id(args[0])], *args[1:])
    args, kwargs = tree_map_only(WholeShard, lambda p: _WHOLE[id(p)], (args, kwargs))
    return func(*args, **kwargs)


class WholeShard(DTensor):
    """A sharded parameter that, for a while, behaves as the whole tensor it belongs to."""

    __torch_function__ = intercepted(_on_whole)


_WHOLE: dict[int, nn.Parameter] = {}
"""The whole tensor of each WholeShard, by its id; kept while it is one."""


class GatheredParameters:
    """Inside, the given parameters are whole on every rank.

    ``modifier_rank``: the rank whose changes are kept; None discards all changes. Collective:
    every rank enters and leaves. ``enabled=False`` does nothing.

    Leaving raises RuntimeError, on all ranks, where ``zero_optimization.enable_sanity_checks`` is
    on and a rank has written to a parameter whose changes are discarded.
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
        self._unwritten: list[tuple[Tensor, tuple[int, int]]] = []
        """Whole parameters to which nobody is to write, and what tells that somebody has."""

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
        if self._modifier_rank is None:
            wholes = [_WHOLE.get(id(p), p) for p in self._parameters if is_watched(p)]
            self._unwritten = [(whole, _writing_of(whole)) for whole in wholes]

    def __exit__(self, kind: object = None, *error: object) -> None:
        written = any(_writing_of(whole) != before for whole, before in self._unwritten)
        asks = bool(self._unwritten)  # also where an error, perhaps of this rank alone, ends it
        for leave in reversed(self._leave):
            leave()
        self._leave, self._unwritten = [], []
        if asks and _anywhere(written) and kind is None:
            raise RuntimeError(
                "in-place modification of parameters in GatheredParameters without modifier_rank, "
                "which discards it: give the rank whose changes are to be kept"
            )

    def _gather_partitioned(self, parameter: PartitionedParameter) -> None:
        piece, dtype, answers = parameter._piece, parameter.dtype, partitioned_attributes(parameter)
        exact = restore(parameter)
        is_finer = exact.dtype is not dtype
        if is_finer:
            round_parameter(parameter, dtype)
        vars(parameter).update(answers)
        set_available(parameter, True)

        def leave() -> None:
            drop_rounding(parameter)
            _take_from(parameter.data, self._modifier_rank)
            is_cast = parameter.dtype is not dtype  # by the script, which replaced its data
            if is_finer and not is_cast:
                _take_from(exact, self._modifier_rank)
                parameter.data = keep_fp32_where_unchanged(exact, parameter.data)
            partition(parameter)
            if is_finer and not is_cast:
                show_as(parameter, dtype)
            if self._modifier_rank is None:
                cast(PartitionedParameter, parameter)._piece = piece

        self._leave.append(leave)

    def _gather_shard(self, shard: nn.Parameter) -> None:
        kind = type(shard)
        sharded = cast(DTensor, shard.detach())
        whole = nn.Parameter(full_tensor_of(sharded).clone(), shard.requires_grad)
        _WHOLE[id(shard)] = whole
        cast(Any, shard).__class__ = WholeShard
        set_available(shard, True)

        def leave() -> None:
            cast(Any, shard).__class__ = kind
            set_available(shard, False)
            del _WHOLE[id(shard)]
            if self._modifier_rank is not None:
                _take_from(whole.data, self._modifier_rank)
                write(shard, whole.data)

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


def _writing_of(whole: Tensor) -> tuple[int, int]:
    """How often it was written to, and where it is, which ``data = ...`` changes."""
    return version_of(whole), whole.data_ptr()


def _anywhere(flag: bool) -> bool:
    """Whether it is set on any rank. Collective."""
    flags = [False] * dist.get_world_size()
    dist.all_gather_object(flags, flag)
    return any(flags)


def _take_from(whole: Tensor, rank: int | None) -> None:
    if rank is not None and dist.get_world_size() > 1:
        dist.broadcast(whole, rank, group=group_for(whole))

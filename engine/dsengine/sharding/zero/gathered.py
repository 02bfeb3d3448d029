"""``zero.GatheredParameters``: full parameters inside a context.

It accepts parameters of a model built under ``zero.Init``, shards of a stage-3 engine (what
``engine.parameters()`` yields), parameters that stay unsharded (stages 1 and 2), and those from
before ``initialize``. Each is full inside and updated on exit.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from dsengine.parameters.shards import full_tensor_of
from dsengine.sharding.zero.dtype_view import write
from dsengine.sharding.zero.partitioned import (
    PartitionedParameter,
    intercepted,
    keep_fp32_where_unchanged,
    partition,
    restore,
    set_dtype,
)
from dsengine.sharding.zero.registry import Counterparts, Lookup
from dsengine.sharding.zero.rounded import drop_rounding, round_parameter
from dsengine.sharding.zero.status import (
    is_watched,
    link_shard,
    partitioned_attributes,
    set_available,
    unlink_shard,
)
from dsengine.topology import current
from dsengine.torch_private.tensors import version_of


def _on_full(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if func is Tensor.__deepcopy__:
        return nn.Parameter.__deepcopy__(_FULL[id(args[0])], *args[1:])
    args, kwargs = tree_map_only(GatheredShard, lambda p: _FULL[id(p)], (args, kwargs))
    return func(*args, **kwargs)


class GatheredShard(DTensor):
    """A sharded parameter that temporarily behaves as its full tensor."""

    __torch_function__ = intercepted(_on_full)


_FULL: dict[int, nn.Parameter] = {}
"""Full tensor of each GatheredShard, by the shard's id."""


class GatheredParameters:
    """Makes the given parameters full on every rank inside the context.

    ``modifier_rank``: the rank whose changes are kept; None discards all changes. Collective: every
    rank enters and exits. ``enabled=False`` does nothing.

    Raises RuntimeError on exit, on all ranks, if ``zero_optimization.enable_sanity_checks`` is set
    and a rank has written to a parameter whose changes are discarded.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Tensor | nn.Module,
        modifier_rank: int | None = None,
        fwd_module: Any = None,
        enabled: bool = True,
    ) -> None:
        del fwd_module
        if isinstance(params, nn.Module):
            params = params.parameters()
        elif isinstance(params, Tensor):
            params = [params]
        # torch declares the parameters of its modules as Tensor.
        given = cast(Iterable[nn.Parameter], params)
        once = {id(p): p for p in given}.values() if enabled else ()
        # transformers passes a set, whose order differs between ranks.
        self._parameters = sorted(once, key=lambda p: getattr(p, "ds_id", math.inf))
        self._modifier_rank = modifier_rank
        self._exits: list[Callable[[], None]] = []
        self._unwritten: list[tuple[Tensor, tuple[int, int]]] = []
        """Full parameters that must not be written, with their write markers at entry."""

    def __enter__(self) -> None:
        engines = Lookup()
        for parameter in self._parameters:
            if isinstance(parameter, GatheredShard):
                continue  # an enclosing context has gathered it and will reshard it
            if isinstance(parameter, PartitionedParameter):
                self._gather_partitioned(parameter)
            elif isinstance(parameter, DTensor):
                self._gather_shard(cast(nn.Parameter, parameter), engines.find(parameter))
            elif (counterparts := engines.find(parameter)) is not None:
                self._refresh_full(parameter, counterparts)
        if self._modifier_rank is None:
            checked = [_FULL.get(id(p), p) for p in self._parameters if is_watched(p)]
            self._unwritten = [(full, _write_marker(full)) for full in checked]

    def __exit__(self, kind: object = None, *error: object) -> None:
        written = any(_write_marker(full) != before for full, before in self._unwritten)
        checks = bool(self._unwritten)  # collective, even after an error on this rank only
        for restore_one in reversed(self._exits):
            restore_one()
        self._exits, self._unwritten = [], []
        if checks and _any_rank(written) and kind is None:
            raise RuntimeError(
                "in-place modification of parameters in GatheredParameters without modifier_rank, "
                "which discards changes: pass modifier_rank, the rank whose changes to keep"
            )

    def keep_changes_of(self, rank: int) -> None:
        """Set ``modifier_rank`` inside the context."""
        self._modifier_rank, self._unwritten = rank, []

    def _gather_partitioned(self, parameter: PartitionedParameter) -> None:
        shard, dtype = parameter._shard, parameter.dtype
        attributes = partitioned_attributes(parameter)
        exact = restore(parameter)
        has_fp32 = exact.dtype is not dtype
        if has_fp32:
            round_parameter(parameter, dtype)
        vars(parameter).update(attributes)
        set_available(parameter, True)
        link_shard(parameter, shard)

        def restore_shard() -> None:
            unlink_shard(parameter)
            drop_rounding(parameter)
            _broadcast_from(parameter.data, self._modifier_rank)
            is_cast = parameter.dtype is not dtype  # by the script, which has replaced its data
            if has_fp32 and not is_cast:
                _broadcast_from(exact, self._modifier_rank)
                parameter.data = keep_fp32_where_unchanged(exact, parameter.data)
            partition(parameter)
            if has_fp32 and not is_cast:
                set_dtype(parameter, dtype)
            if self._modifier_rank is None:
                cast(PartitionedParameter, parameter)._shard = shard

        self._exits.append(restore_shard)

    def _gather_shard(self, shard: nn.Parameter, counterparts: Counterparts | None) -> None:
        """``counterparts``: of this rank's part of a split layer that is not sharded."""
        kind = type(shard)
        sharded = cast(DTensor, shard.detach())
        full = nn.Parameter(full_tensor_of(sharded).clone(), shard.requires_grad)
        _FULL[id(shard)] = full
        cast(Any, shard).__class__ = GatheredShard
        set_available(shard, True)

        def restore_shard() -> None:
            cast(Any, shard).__class__ = kind
            set_available(shard, False)
            del _FULL[id(shard)]
            if self._modifier_rank is not None:
                _broadcast_from(full.data, self._modifier_rank)
                write(shard, full.data)
                if counterparts is not None:
                    write(counterparts.master, full.data)

        self._exits.append(restore_shard)

    def _refresh_full(self, parameter: nn.Parameter, counterparts: Counterparts) -> None:
        """Refresh a full parameter from its shard; write the shard on exit."""
        was_empty = parameter.numel() == 0
        counterparts.refresh(parameter)
        before = parameter.data.clone() if self._modifier_rank is None and not was_empty else None

        def restore_shard() -> None:
            if self._modifier_rank is not None:
                _broadcast_from(parameter.data, self._modifier_rank)
                counterparts.write(parameter.data)
            elif before is not None:
                parameter.data.copy_(before)
            if was_empty:
                parameter.data = parameter.data.new_empty(0)

        self._exits.append(restore_shard)


def _write_marker(full: Tensor) -> tuple[int, int]:
    """Return values that change if ``full`` is written or its data is replaced."""
    return version_of(full), full.data_ptr()


def _any_rank(flag: bool) -> bool:
    """Whether ``flag`` is set on any rank of the same pipeline stage. Collective."""
    group = current().group("stage")
    flags = [False] * group.size()
    dist.all_gather_object(flags, flag, group=group)
    return any(flags)


def _broadcast_from(full: Tensor, rank: int | None) -> None:
    if rank is not None and current().size("stage") > 1:
        dist.broadcast(full, rank, group=current().group_for(full, "stage"))

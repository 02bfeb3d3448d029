"""DeepSpeed's status attributes of parameters, and the shard of a gathered one.

They are ``ds_id``, ``ds_shape``, ``ds_numel``, ``ds_status`` and ``ds_persist``. Scripts for stage
3 check ``hasattr(p, "ds_id")`` for a partitioned parameter, ``p.ds_status`` before they gather it,
and ``p.ds_persist`` for one that stays gathered. At stage 3 every parameter has them, also in units
that stay unsharded and inside forward. Below stage 3 none has.
"""

from enum import Enum, auto
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

_shards: Any = WeakIdKeyDictionary()
"""Gathered parameters, with the shards they are gathered from."""


def link_shard(gathered: Tensor, shard: Tensor) -> None:
    """Record that ``gathered`` is the full parameter of ``shard``."""
    if gathered is not shard:
        _shards[gathered] = shard


def unlink_shard(gathered: Tensor) -> None:
    """Undo ``link_shard``."""
    _shards.pop(gathered, None)


def shard_of(parameter: Tensor) -> Tensor:
    """Return the shard of a gathered parameter; any other one itself."""
    return _shards.get(parameter, parameter)


_numbers = count()
NAMES = ("ds_id", "ds_shape", "ds_numel", "ds_status", "ds_persist")


class ZeroParamStatus(Enum):
    """Whether a partitioned parameter is gathered on this rank."""

    AVAILABLE = auto()
    NOT_AVAILABLE = auto()
    INFLIGHT = auto()
    """DeepSpeed's, for a pending gather; never used here."""


def set_partitioned_attributes(parameter: Tensor, shape: torch.Size) -> None:
    """Set the attributes of a partitioned ``parameter``; an existing ``ds_id`` is kept."""
    target = cast(Any, parameter)
    if not hasattr(target, "ds_id"):
        target.ds_id = next(_numbers)
    target.ds_shape = shape
    target.ds_numel = shape.numel()
    target.ds_status = ZeroParamStatus.NOT_AVAILABLE
    target.ds_persist = False


def set_gathered_attributes(parameter: Tensor, shard: Tensor, *, persists: bool = False) -> None:
    """Set the attributes of a gathered stage-3 parameter, with the ``ds_id`` of its ``shard``.

    ``persists``: it stays gathered between steps.
    """
    if hasattr(parameter, "ds_id"):
        return
    set_partitioned_attributes(parameter, shard.shape)
    target = cast(Any, parameter)
    target.ds_id = getattr(shard, "ds_id", target.ds_id)
    target.ds_status, target.ds_persist = ZeroParamStatus.AVAILABLE, persists
    link_shard(parameter, shard)


def watch_writes(parameter: Tensor) -> None:
    """Make GatheredParameters raise for writes to ``parameter`` that it discards."""
    cast(Any, parameter).ds_enable_sanity_checks = True


def is_watched(parameter: Tensor) -> bool:
    return getattr(parameter, "ds_enable_sanity_checks", False)


def partitioned_attributes(parameter: Tensor) -> dict[str, Any]:
    """Return the attributes of a partitioned parameter by name."""
    return {name: getattr(parameter, name) for name in NAMES}


def set_available(parameter: Tensor, available: bool) -> None:
    """Set whether a partitioned parameter is gathered; no effect for other parameters."""
    if hasattr(parameter, "ds_id"):
        status = ZeroParamStatus.AVAILABLE if available else ZeroParamStatus.NOT_AVAILABLE
        cast(Any, parameter).ds_status = status


def clear_partitioned_attributes(parameter: Tensor) -> None:
    """Remove the attributes from ``parameter``."""
    for name in NAMES:
        if hasattr(parameter, name):
            delattr(parameter, name)

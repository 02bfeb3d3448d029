"""What a divided parameter says of itself: ``ds_id``, ``ds_shape``, ``ds_numel``, ``ds_status``
and ``ds_persist``.

Scripts written for stage 3 ask ``hasattr(p, "ds_id")`` whether a parameter is divided,
``p.ds_status`` whether it is whole just now, before they gather it, and ``p.ds_persist`` whether it
stays whole: at stage 3 every parameter says so, those of a unit that stays whole too, and inside
forward. Below stage 3 none has any of these.
"""

from enum import Enum, auto
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor

_numbers = count()
_NAMES = ("ds_id", "ds_shape", "ds_numel", "ds_status", "ds_persist")


class ZeroParamStatus(Enum):
    """Whether a divided parameter is whole on this rank."""

    AVAILABLE = auto()
    NOT_AVAILABLE = auto()
    INFLIGHT = auto()
    """DeepSpeed's, for a gather that is not awaited; here nobody gets to see that."""


def set_partitioned_attributes(parameter: Tensor, shape: torch.Size) -> None:
    """Let ``parameter``, of which this rank holds a part, answer scripts; its number stays."""
    told = cast(Any, parameter)
    if not hasattr(told, "ds_id"):
        told.ds_id = next(_numbers)
    told.ds_shape = shape
    told.ds_numel = shape.numel()
    told.ds_status = ZeroParamStatus.NOT_AVAILABLE
    told.ds_persist = False


def set_gathered_attributes(parameter: Tensor, shard: Tensor, *, persists: bool = False) -> None:
    """Let a whole parameter of stage 3 answer as the ``shard`` that it is gathered from.

    ``persists``: it stays whole between steps.
    """
    if hasattr(parameter, "ds_id"):
        return
    set_partitioned_attributes(parameter, shard.shape)
    told = cast(Any, parameter)
    told.ds_id = getattr(shard, "ds_id", told.ds_id)
    told.ds_status, told.ds_persist = ZeroParamStatus.AVAILABLE, persists


def watch_writes(parameter: Tensor) -> None:
    """Let GatheredParameters refuse writes to ``parameter`` that it is going to discard."""
    cast(Any, parameter).ds_enable_sanity_checks = True


def is_watched(parameter: Tensor) -> bool:
    return getattr(parameter, "ds_enable_sanity_checks", False)


def partitioned_attributes(parameter: Tensor) -> dict[str, Any]:
    """Return what a divided parameter says of itself, by name."""
    return {name: getattr(parameter, name) for name in _NAMES}


def set_available(parameter: Tensor, available: bool) -> None:
    """Say whether a divided parameter is whole; nothing for one that never is divided."""
    if hasattr(parameter, "ds_id"):
        status = ZeroParamStatus.AVAILABLE if available else ZeroParamStatus.NOT_AVAILABLE
        cast(Any, parameter).ds_status = status


def clear_partitioned_attributes(parameter: Tensor) -> None:
    """Take the answers back: ``parameter`` is an ordinary one from now on."""
    for name in _NAMES:
        if hasattr(parameter, name):
            delattr(parameter, name)

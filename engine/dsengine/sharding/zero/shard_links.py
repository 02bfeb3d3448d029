"""Which shard a gathered parameter belongs to."""

from typing import Any

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

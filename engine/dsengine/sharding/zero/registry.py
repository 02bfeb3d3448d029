"""Lookup of the shard that belongs to a full parameter of a script."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dsengine.parameters.shards import full_tensor_of
from dsengine.sharding.zero.dtype_view import write
from dsengine.sharding.zero.status import set_partitioned_attributes
from dsengine.torch_private.units import sharded_parameters_of, units_of

_ENGINES: WeakSet[nn.Module] = WeakSet()
_MASTER = "_dsengine_master"


@dataclass(frozen=True, slots=True)
class Counterparts:
    """Counterparts of a full parameter: the trained shard, the gathered copy in use."""

    master: Tensor
    gathered: Tensor | None = None

    @torch.no_grad()
    def refresh(self, parameter: nn.Parameter) -> None:
        """Copy the trained values into ``parameter``. Collective unless it is in use itself."""
        if self.gathered is parameter:
            return
        master = self.master.detach()
        full = full_tensor_of(master) if isinstance(master, DTensor) else master
        if parameter.data.shape == full.shape:
            parameter.data.copy_(full)
        else:
            parameter.data = full.to(parameter.dtype).clone()

    @torch.no_grad()
    def write(self, full: Tensor) -> None:
        """Write ``full``, alike on all ranks, to the counterparts."""
        write(self.master, full)
        if self.gathered is not None:
            self.gathered.copy_(full)


def register_model(
    root: nn.Module, originals: Mapping[Any, str], masters: Mapping[str, nn.Parameter]
) -> None:
    """Register an engine's model, so that parameters from before it can be gathered too.

    Links the originals that a script still holds to their masters.
    """
    _ENGINES.add(root)
    for master in masters.values():
        if isinstance(master, DTensor):
            set_partitioned_attributes(master, master.shape)
    for original, name in originals.items():
        if name in masters and masters[name] is not original:
            setattr(original, _MASTER, masters[name])


def unlink(parameter: Tensor) -> None:
    """Remove the link from ``parameter`` to a master of an earlier engine."""
    vars(parameter).pop(_MASTER, None)


def master_of(parameter: Tensor) -> Tensor | None:
    """Return the master that an engine trains for a parameter from before ``initialize``."""
    return getattr(parameter, _MASTER, None)


class Lookup:
    """Finds the counterparts of full parameters in all engines of this process."""

    def __init__(self) -> None:
        self._gathered: dict[int, Counterparts] = {}
        for root in _ENGINES:
            for record in sharded_parameters_of(units_of(root)):
                if record.was_gathered:
                    counterparts = Counterparts(record.shard, record.unsharded)
                    self._gathered[id(record.unsharded)] = counterparts

    def find(self, parameter: Tensor) -> Counterparts | None:
        counterparts = self._gathered.get(id(parameter))
        if counterparts is not None:
            return counterparts
        master = master_of(parameter)
        return None if master is None else Counterparts(master)

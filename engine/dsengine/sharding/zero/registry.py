"""Which shard belongs to a whole parameter that a script holds."""

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
from dsengine.torch_private import sharded_parameters_of, units_of

_ENGINES: WeakSet[nn.Module] = WeakSet()
_MASTER = "_dsengine_master"


@dataclass(frozen=True, slots=True)
class Held:
    """A whole parameter's counterparts: the shard that is trained, the gathered copy in use."""

    master: Tensor
    gathered: Tensor | None = None

    @torch.no_grad()
    def refresh(self, parameter: nn.Parameter) -> None:
        """Give ``parameter`` the values of training; collective unless it is in use itself."""
        if self.gathered is parameter:
            return
        master = self.master.detach()
        whole = full_tensor_of(master) if isinstance(master, DTensor) else master
        if parameter.data.shape == whole.shape:
            parameter.data.copy_(whole)
        else:
            parameter.data = whole.to(parameter.dtype).clone()

    @torch.no_grad()
    def write(self, whole: Tensor) -> None:
        """Take over what is now in ``whole``, alike on all ranks."""
        write(self.master, whole)
        if self.gathered is not None:
            self.gathered.copy_(whole)


def remember(
    root: nn.Module, originals: Mapping[Any, str], masters: Mapping[str, nn.Parameter]
) -> None:
    """Note an engine's model, so that parameters from before it can be gathered too.

    An original that a script still holds leads to its master from now on.
    """
    _ENGINES.add(root)
    for master in masters.values():
        if isinstance(master, DTensor):
            set_partitioned_attributes(master, master.shape)
    for original, name in originals.items():
        if name in masters and masters[name] is not original:
            setattr(original, _MASTER, masters[name])


def forget(parameter: Tensor) -> None:
    """Let ``parameter`` lead to itself again: the engine that has had its model has it no more."""
    vars(parameter).pop(_MASTER, None)


def master_of(parameter: Tensor) -> Tensor | None:
    """Return what an engine trains in the place of a parameter from before ``initialize``."""
    return getattr(parameter, _MASTER, None)


class Lookup:
    """Finds the counterparts of whole parameters in all engines of this process."""

    def __init__(self) -> None:
        self._gathered: dict[int, Held] = {}
        for root in _ENGINES:
            for each in sharded_parameters_of(units_of(root)):
                if each.was_gathered:
                    self._gathered[id(each.whole)] = Held(each.shard, each.whole)

    def find(self, parameter: Tensor) -> Held | None:
        found = self._gathered.get(id(parameter))
        if found is not None:
            return found
        master = master_of(parameter)
        return None if master is None else Held(master)

"""fp32 masters on the host, copied from each unit while it is sharded; the device keeps 16 bits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import swap_tensors

from dsengine.parameters.shards import chunk_of
from dsengine.tiers import memory
from dsengine.torch_private.tensors import as_shard, local_part


@dataclass(eq=False)
class HostMasters:
    """This rank's fp32 master shards, ``parts``, by the names in ``originals``.

    Full parameters are chunked along their first axis, as in ``fully_shard``; this is ``rank`` of
    ``ranks``. ``dtype``: the dtype of the parameters left on the device.
    """

    originals: Mapping[Tensor, str]
    rank: int
    ranks: int
    dtype: torch.dtype
    pin: bool
    parts: dict[str, Tensor] = field(init=False, default_factory=dict[str, Tensor])

    @staticmethod
    def have(parameter: nn.Parameter) -> bool:
        """Whether ``parameter`` has a master."""
        return parameter.requires_grad and parameter.is_floating_point()

    @torch.no_grad()
    def extract(self, full: Iterable[nn.Parameter]) -> None:
        """Store this rank's shard of each full parameter, and cast the parameter to ``dtype``."""
        for parameter in full:
            if self.have(parameter):
                local = local_part(parameter.data)
                own = chunk_of(local, self.rank, self.ranks)
                self.store(self.originals[parameter], own)
                if isinstance(parameter, DTensor):  # a part of a split layer
                    part = as_shard(local.to(self.dtype), parameter)
                    swap_tensors(parameter, nn.Parameter(part, parameter.requires_grad))
                else:
                    parameter.data = local.to(self.dtype)

    @torch.no_grad()
    def store(self, name: str, part: Tensor) -> None:
        """Copy this rank's shard of parameter ``name``, of any dtype."""
        self.parts[name] = memory.empty_on_host(part.shape, pin=self.pin).copy_(part)

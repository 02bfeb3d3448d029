"""fp32 masters on the host, made from each unit while it is in hand; the device keeps 16 bits."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from dsengine.parameters.chunks import chunk_of
from dsengine.tiers import memory


class HostMasters:
    """This rank's fp32 ``parts`` by the names that ``originals`` gives to whole parameters.

    Whole parameters are divided along their first axis, as ``fully_shard`` divides them; ``rank``
    of ``ranks`` is this one's place. ``dtype``: what is left of them for the device.
    """

    def __init__(
        self,
        originals: Mapping[Tensor, str],
        rank: int,
        ranks: int,
        *,
        dtype: torch.dtype,
        pin: bool,
    ) -> None:
        self.parts: dict[str, Tensor] = {}
        self.dtype = dtype
        self._originals = originals
        self._rank, self._ranks = rank, ranks
        self._pin = pin

    @staticmethod
    def have(parameter: nn.Parameter) -> bool:
        """Whether there is a master of ``parameter``."""
        return parameter.requires_grad and parameter.is_floating_point()

    @torch.no_grad()
    def take(self, whole: Iterable[nn.Parameter]) -> None:
        """Keep this rank's part of each; leave whole parameters of ``dtype`` in their place."""
        for parameter in whole:
            if self.have(parameter):
                own = chunk_of(parameter.data, self._rank, self._ranks)
                self.keep(self._originals[parameter], own)
                parameter.data = parameter.data.to(self.dtype)

    @torch.no_grad()
    def keep(self, name: str, part: Tensor) -> None:
        """Copy this rank's part of parameter ``name``, in whatever dtype it comes."""
        self.parts[name] = memory.empty_on_host(part.shape, pin=self._pin).copy_(part)

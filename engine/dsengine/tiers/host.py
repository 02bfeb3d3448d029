"""The optimizer in host memory: fp32 parts, moments and the update; shards are copied back.

[Note: what is copied when]
Gradients come while backward runs (``departed.py``); ``gradients`` waits for the last of them,
because the norm reads them next. ``step`` goes tile by tile: the update reads parts and gradients
of a tile on the host; the result is cast piece by piece into staging buffers, whose copies to the
device run while the next tile is computed. Nothing waits for the last of them: the next use of a
shard is on the same stream, behind it. Shards can be written to from outside in between (a load,
GatheredParameters); a shard whose version is not the one that ``_copy_back`` left is taken over
before its tile is updated.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dsengine.optimizers.binding import Binding, is_elementwise
from dsengine.tiers import memory
from dsengine.tiers.departed import DepartedGradients
from dsengine.tiers.settings import OffloadSettings
from dsengine.tiers.staging import Staging
from dsengine.tiers.tiles import Tile, divide_into_tiles, host_share, stepping_only
from dsengine.torch_private import as_shard, local_part, version_of


class HostBinding(Binding):
    """Holds an optimizer to fp32 copies of this rank's parts, on the host.

    A step updates tile by tile (``sub_group_size``), and copies each updated tile to the device
    while the next one is computed. The first ``1 - ratio`` of the tiles stay on the device. Only
    optimizers that treat each element alone can be divided so. Raises ValueError for any other.
    """

    PINS_PARTS = True
    """Whether the parts are pinned where the config pins memory; gradients always are then."""

    def __init__(
        self,
        optimizer: Optimizer,
        masters: Mapping[str, nn.Parameter],
        settings: OffloadSettings,
        host_masters: dict[str, Tensor],
    ) -> None:
        if not is_elementwise(type(optimizer)):
            raise ValueError(
                f"{type(optimizer).__name__} cannot be offloaded: its update of one element needs "
                "others. Use AdamW, Adam, SGD or Adagrad, or remove offload_optimizer"
            )
        self.optimizer = optimizer
        self.masters = masters
        self.settings = settings
        self.uses_parts = True
        self._pin = settings.pin_memory and torch.cuda.is_available()
        sizes = {n: local_part(masters[n]).numel() for n in self._names_in_order()}
        tiles = divide_into_tiles(sizes, settings.tile_elements)
        self.device_tiles, self.host_tiles = host_share(tiles, settings.ratio)
        on_device = {name for tile in self.device_tiles for name in tile.names}
        self._adopt(
            {n: self._part(masters[n], host_masters.pop(n, None), n in on_device) for n in sizes}
        )
        self._staging = Staging(pin=self._pin)
        self.departed = DepartedGradients(
            masters,
            self.parts,
            rounding=settings.rounding,
            copied=settings.shards_on_host,
            staging=self._staging,
            pin=self._pin,
        )
        self._gradients: dict[str, Tensor] = {}
        """Those of the step that is under way."""
        self._written = {n: self._version(n) for n in sizes}
        """What the shards' versions were when they were last copied from their parts."""
        self.held: dict[str, nn.Parameter] = {}

    def _names_in_order(self) -> list[str]:
        names = {id(master): name for name, master in self.masters.items()}
        return [names[id(p)] for group in self.optimizer.param_groups for p in group["params"]]

    def _part(self, master: nn.Parameter, on_host: Tensor | None, on_device: bool) -> nn.Parameter:
        shard = local_part(master).detach()
        if on_host is not None and not on_device:
            return nn.Parameter(on_host, requires_grad=master.requires_grad)
        if on_device:
            part = torch.empty_like(shard, dtype=torch.float32)
        else:
            part = memory.empty_on_host(shard.shape, pin=self._pin and self.PINS_PARTS)
        part.copy_(shard if on_host is None else on_host)
        return nn.Parameter(part, requires_grad=master.requires_grad)

    def _adopt(self, parts: dict[str, nn.Parameter]) -> None:
        """Let the optimizer hold ``parts`` in the place of the masters."""
        self.parts = parts
        self._exchange({self.masters[name]: part for name, part in parts.items()}, _to_part)

    def gradients(self, reduced: Iterator[tuple[str, Tensor]]) -> list[Tensor]:
        """Return the sums of those that have departed, in fp32, where their parts are."""
        self._gradients = {name: each for name, each in reduced if name in self.departed}
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return list(self._gradients.values())

    def hand_over_gradients(self) -> None:
        """Nothing: each tile is given its gradients when it is updated."""

    def drop_gradients(self) -> None:
        self._gradients = {}

    def step(self) -> None:
        """Update all tiles, those of the device first."""
        for tile in [*self.device_tiles, *self.host_tiles]:
            self._update(tile)

    @torch.no_grad()
    def _version(self, name: str) -> int:
        return version_of(local_part(self.masters[name]))

    def _update(self, tile: Tile) -> None:
        self._take_changes(tile)
        received = [name for name in tile.names if name in self._gradients]
        for name in received:
            self.parts[name].grad = self._gradients[name]
        with stepping_only(self.optimizer, [self.parts[name] for name in tile.names]):
            self.optimizer.step()
        for name in received:
            self.parts[name].grad = None
        self._copy_back(tile)

    @torch.no_grad()
    def _take_changes(self, tile: Tile) -> None:
        """Take over shards that were written to from outside (a load, GatheredParameters)."""
        for name in tile.names:
            if self._version(name) != self._written[name]:
                self.parts[name].copy_(local_part(self.masters[name]))

    @torch.no_grad()
    def _copy_back(self, tile: Tile) -> None:
        for name in tile.names:
            part, shard = self.parts[name].detach(), local_part(self.masters[name])
            if part.device == shard.device:
                shard.copy_(part)
            else:
                self._staging.bring(part, shard)
            self._written[name] = self._version(name)

    def sharded(self) -> dict[str, Tensor]:
        """Return the fp32 parts as shards of whole parameters, by name; same memory."""
        return {n: _sharded_like(part.detach(), self.masters[n]) for n, part in self.parts.items()}

    @contextmanager
    def as_sharded(self) -> Iterator[None]:
        """Let the optimizer hold the sharded fp32 parts inside; its state follows."""
        parts = self.parts
        for tile in [*self.device_tiles, *self.host_tiles]:
            self._take_changes(tile)
        self.held = {name: nn.Parameter(tensor) for name, tensor in self.sharded().items()}
        self._exchange({part: self.held[name] for name, part in parts.items()}, _to_shard)
        try:
            yield
        finally:
            self._exchange({self.held[name]: part for name, part in parts.items()}, _to_part)
            self.held = {}
            for tile in [*self.device_tiles, *self.host_tiles]:
                self._copy_back(tile)

    def checkpointed(self) -> Mapping[str, Tensor]:
        return {**self.masters, **self.held}

    def close(self) -> None:
        self.departed.close()
        self._staging.close()


def _sharded_like(part: Tensor, master: Tensor) -> Tensor:
    return as_shard(part, master) if isinstance(master, DTensor) else part


def _to_shard(value: Tensor, old: Tensor, new: Any) -> Tensor:
    if value.dim() == 0 or value.shape != old.shape:
        return value
    return _sharded_like(value, new)


def _to_part(value: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Return a state tensor's part, where the parameter's part is.

    A step count is there too, or on the host: fused kernels want it beside the parameter.
    """
    part = local_part(value)
    stays = part.dim() == 0 and part.device.type != old.device.type
    return part if stays else part.to(new.device)

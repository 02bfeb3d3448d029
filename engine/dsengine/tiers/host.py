"""The optimizer in host memory: fp32 parts, moments and the update; shards are copied back.

[Note: what is copied when]
``gradients`` issues the copies of all reduced gradients to the host and waits for them once,
because the norm reads them next. ``step`` goes tile by tile: the update reads parts and gradients
of a tile on the host; its copies to the device are issued without a wait and run while the next
tile is computed. Nothing waits for the last of them: the next use of a shard is on the same
stream, behind it. A part may be written again only in the next step, whose wait in ``gradients``
comes after. Shards can be written to from outside in between (a load, GatheredParameters); a
shard whose version is not the one that ``_copy_back`` left is taken over before its tile is
updated.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dsengine.optimizers.binding import Binding, is_elementwise
from dsengine.tiers.settings import OffloadSettings
from dsengine.tiers.tiles import Tile, divide_into_tiles, host_share, stepping_only
from dsengine.torch_private import as_shard, local_part, version_of


class HostBinding(Binding):
    """Holds an optimizer to fp32 copies of this rank's parts, on the host.

    A step copies reduced gradients to the host, updates tile by tile (``sub_group_size``), and
    copies each updated tile to the device while the next one is computed. The first
    ``1 - ratio`` of the tiles stay on the device. Only optimizers that treat each element alone
    can be divided so. Raises ValueError for any other.
    """

    PINS_PARTS = True
    """Whether the parts are pinned where the config pins memory; gradients always are then."""

    def __init__(
        self,
        optimizer: Optimizer,
        masters: Mapping[str, nn.Parameter],
        settings: OffloadSettings,
        host_masters: Mapping[str, Tensor],
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
        self._adopt({n: self._part(masters[n], host_masters.get(n), n in on_device) for n in sizes})
        self._gradients: dict[str, Tensor] = {}
        """Reduced gradients in fp32; the memory is kept for the next step."""
        self._received: list[str] = []
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
        home = shard.device if on_device else torch.device("cpu")
        pin = self._pin and self.PINS_PARTS and home.type == "cpu"
        part = torch.empty(shard.shape, dtype=torch.float32, device=home, pin_memory=pin)
        part.copy_(shard if on_host is None else on_host)
        return nn.Parameter(part, requires_grad=master.requires_grad)

    def _adopt(self, parts: dict[str, nn.Parameter]) -> None:
        """Let the optimizer hold ``parts`` in the place of the masters."""
        self.parts = parts
        self._exchange({self.masters[name]: part for name, part in parts.items()}, _to_part)

    def gradients(self, reduced: Iterator[tuple[str, Tensor]]) -> list[Tensor]:
        """Copy the reduced gradients to where their parts are; return the copies, in fp32."""
        self._received = [name for name, each in reduced if self._receive(name, each)]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return [self._gradients[name] for name in self._received]

    def _receive(self, name: str, gradient: Tensor) -> bool:
        if name not in self.parts:
            return False
        if name not in self._gradients:
            home = self.parts[name].device
            pin = self._pin and home.type == "cpu"
            self._gradients[name] = torch.empty(
                gradient.shape, dtype=torch.float32, device=home, pin_memory=pin
            )
        self._gradients[name].copy_(gradient, non_blocking=True)
        return True

    def hand_over_gradients(self) -> None:
        """Nothing: each tile is given its gradients when it is updated."""

    def drop_gradients(self) -> None:
        self._received = []

    def step(self) -> None:
        """Update all tiles, those of the device first."""
        for tile in [*self.device_tiles, *self.host_tiles]:
            self._update(tile)

    @torch.no_grad()
    def _version(self, name: str) -> int:
        return version_of(local_part(self.masters[name]))

    def _update(self, tile: Tile) -> None:
        self._take_changes(tile)
        received = [name for name in tile.names if name in self._received]
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
            local_part(self.masters[name]).copy_(self.parts[name], non_blocking=True)
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

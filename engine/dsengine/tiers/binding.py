"""An offloaded optimizer: master shards, moments and the update, in host memory or on NVMe.

Where parts and moments are between updates is a storage: ``storage.py``, ``nvme.py``.

[Note: what is copied when]
Gradients arrive during backward (``offloaded_gradients``); ``gradients`` waits for the last one
because the norm reads them next. ``step`` updates tile by tile (``tiles.py``): it reads a tile's
parts and gradients on the host, and casts the result piece by piece into staging buffers whose
copies to the device run while the next tile is computed. Nothing waits for the last copy: the next
use of a shard is queued behind it on the same stream. Shards can be written from outside between
steps (a load, GatheredParameters); a shard whose version differs from the one ``_copy_back`` left
is copied to its part before the update. 16-bit weights and states are updated in fp32 copies, and
rounded once.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dsconfig import tiles
from dsconfig.features.table import FEATURES
from dsengine.communication.devices import device_of_rank, wait_for_device
from dsengine.optimizers.binding import Binding, proves_elementwise
from dsengine.tiers import memory
from dsengine.tiers.nvme import FileStorage
from dsengine.tiers.offloaded_gradients import OffloadedGradients
from dsengine.tiers.settings import OffloadSettings
from dsengine.tiers.staging import Staging
from dsengine.tiers.storage import HostStorage
from dsengine.tiers.tiles import (
    Piece,
    Tile,
    divide_into_tiles,
    split_pieces,
    states_per_element,
    stepping_pieces,
)
from dsengine.torch_private.optimizers import step_hooks_once
from dsengine.torch_private.tensors import as_shard, local_part, version_of


class OffloadedBinding(Binding):
    """Binds an optimizer to copies ("parts") of this rank's shards, on the host or on NVMe.

    A step updates tile by tile (``sub_group_size``, limited by a staging buffer) and copies each
    updated tile to the device while the next one is computed. The first ``1 - ratio`` of the
    elements stay on the device. Raises ValueError for optimizers that are not elementwise, which
    cannot be split into tiles.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        masters: Mapping[str, nn.Parameter],
        settings: OffloadSettings,
        host_masters: dict[str, Tensor],
    ) -> None:
        if not proves_elementwise(optimizer):
            text = FEATURES["offload_of_other_updates"].text
            raise ValueError(f"{type(optimizer).__name__}: {text}")
        self.optimizer = optimizer
        self.masters = masters
        self.settings = settings
        self.uses_local_shards = True
        self._pin = settings.pin_memory and memory.can_pin()
        sizes = {n: local_part(masters[n]).numel() for n in self._names_in_order()}
        on_device, on_host = tiles.host_share(sizes, settings.ratio)
        self._adopt(
            {n: self._part(masters[n], host_masters.pop(n, None), n in on_device) for n in sizes}
        )
        entries = states_per_element(optimizer)
        elements = tiles.tile_elements(settings.sub_group_size)
        if settings.nvme_path is not None:
            elements = tiles.filed_tile_elements(settings.sub_group_size, 1 + len(entries))
        self.device_tiles = divide_into_tiles(on_device, settings.sub_group_size)
        self.host_tiles = divide_into_tiles(on_host, elements)
        self._staging = Staging()
        self.offloaded_gradients = OffloadedGradients(
            masters,
            self.shards,
            rounding=settings.rounding,
            copied=settings.shards_on_host,
            staging=self._staging,
            pin=self._pin,
        )
        self._gradients: dict[str, Tensor] = {}
        """Gradients of the current step."""
        self._written = {n: self._version(n) for n in sizes}
        """Versions of the shards when they were last copied from their parts."""
        self._changed: set[str] = set()
        """Shards written from outside before the current step."""
        self._is_inconsistent = False
        """True during a step, and after an error has interrupted one."""
        self.sharded_parts: dict[str, nn.Parameter] = {}
        stored = (optimizer, self.shards, entries, settings, self.host_tiles)
        self.storage = HostStorage(*stored) if settings.nvme_path is None else FileStorage(*stored)

    def _names_in_order(self) -> list[str]:
        names = {id(master): name for name, master in self.masters.items()}
        return [names[id(p)] for group in self.optimizer.param_groups for p in group["params"]]

    def _part(self, master: nn.Parameter, on_host: Tensor | None, on_device: bool) -> nn.Parameter:
        shard = local_part(master).detach()
        if on_host is not None and not on_device:
            return nn.Parameter(on_host, requires_grad=master.requires_grad)
        if on_device:
            part = torch.empty_like(shard, dtype=self.settings.master)
        else:
            # Parts on NVMe leave host memory at once, and torch never frees pinned memory.
            pin = self._pin and self.settings.nvme_path is None
            part = memory.empty_on_host(shard.shape, pin=pin, dtype=self.settings.master)
        part.copy_(shard if on_host is None else on_host)
        return nn.Parameter(part, requires_grad=master.requires_grad)

    def _adopt(self, parts: dict[str, nn.Parameter]) -> None:
        """Replace the masters by ``parts`` in the optimizer."""
        self.shards = parts
        self._replace({self.masters[name]: part for name, part in parts.items()}, _to_part)

    def gradients(self, reduced: Iterator[tuple[str, Tensor]]) -> Mapping[str, Tensor]:
        """Return the sums of the offloaded gradients, on the devices of their parts."""
        self._gradients = {
            name: total for name, total in reduced if name in self.offloaded_gradients
        }
        wait_for_device(device_of_rank())
        return dict(self._gradients)

    def assign_gradients(self) -> None:
        """Do nothing: each tile gets its gradients when it is updated."""

    def drop_gradients(self) -> None:
        self._gradients = {}

    def step(self) -> None:
        """Update all tiles, those on the device first.

        Raises RuntimeError if an error has interrupted an earlier step.
        """
        self._refuse_inconsistent()
        self.storage.update_entries(states_per_element(self.optimizer))
        step_hooks_once(self.optimizer, self._step_tiles)
        memory.trim_heap()

    def _step_tiles(self) -> None:
        self._find_changes()
        self._is_inconsistent = True
        for tile in chain(self.device_tiles, self.storage.loaded()):
            self._update(tile)
        self._is_inconsistent = False

    def _refuse_inconsistent(self) -> None:
        if self._is_inconsistent:
            raise RuntimeError(
                "an error interrupted a step of the offloaded optimizer: some weights are updated, "
                "others are not. Build a new engine and load the last checkpoint"
            )

    @torch.no_grad()
    def _version(self, name: str) -> int:
        return version_of(local_part(self.masters[name]))

    def mark_in_sync(self, name: str) -> None:
        self._written[name] = self._version(name)

    def _find_changes(self) -> None:
        self._changed = {n for n in self.shards if self._version(n) != self._written[n]}

    def _copy_all_changes(self) -> None:
        self._find_changes()
        for tile in [*self.device_tiles, *self.host_tiles]:
            self._copy_changes(tile)
        for name in self._changed:
            self.mark_in_sync(name)

    def _update(self, tile: Tile) -> None:
        self._copy_changes(tile)
        due = [piece for piece in tile.pieces if piece.name in self._gradients]
        self._step_pieces([piece for piece in due if self._steps_in_place(piece)])
        copied = [piece for piece in due if not self._steps_in_place(piece)]
        for pieces in split_pieces(copied, tiles.COPIED_ELEMENTS):
            self._step_pieces(pieces)
        self._copy_back(tile)

    @property
    def _is_narrow(self) -> bool:
        """Whether weights have fewer bits than those that the update is computed with."""
        return self.settings.master is not torch.float32

    def _steps_in_place(self, piece: Piece) -> bool:
        return not self._is_narrow and bool(self.optimizer.state.get(self.shards[piece.name]))

    def _step_pieces(self, pieces: Sequence[Piece]) -> None:
        """Update the pieces with the optimizer's own step, which sees only them."""
        stepped = {piece: self._stepped(piece) for piece in pieces}
        in_groups = {self.shards[piece.name]: parameter for piece, parameter in stepped.items()}
        with stepping_pieces(self.optimizer, in_groups):
            self.optimizer.step()
        for piece, parameter in stepped.items():
            if self._is_narrow:
                self.storage.weights(piece).copy_(parameter.detach())
            self.storage.store_state(piece, self.optimizer.state.pop(parameter, {}))

    def _stepped(self, piece: Piece) -> nn.Parameter:
        """Return an fp32 parameter for this piece, with its gradient and state."""
        part = self.shards[piece.name]
        weights = self.storage.weights(piece).float()
        parameter = nn.Parameter(weights, requires_grad=part.requires_grad)
        parameter.grad = piece.of(self._gradients[piece.name]).float()
        state = self.optimizer.state.get(part)
        if state:
            own = self.storage.moments(piece)
            self.optimizer.state[parameter] = {
                name: own[name].float() if name in own else _cloned(value)
                for name, value in state.items()
            }
        return parameter

    @torch.no_grad()
    def _copy_changes(self, tile: Tile) -> None:
        """Copy shards written from outside (a load, GatheredParameters) to their parts."""
        for piece in tile.pieces:
            if piece.name in self._changed:
                shard = local_part(self.masters[piece.name])
                self.storage.weights(piece).copy_(piece.of(shard))

    @torch.no_grad()
    def _copy_back(self, tile: Tile) -> None:
        for piece in tile.pieces:
            weights, shard = self.storage.weights(piece), local_part(self.masters[piece.name])
            if memory.in_same_memory(weights, shard):
                piece.of(shard).copy_(weights)
            else:
                self._staging.to_device(weights, piece.of(shard))
            self._written[piece.name] = self._version(piece.name)

    def sharded(self) -> dict[str, Tensor]:
        """Return the parts as shards of full parameters by name, in the same memory."""
        return {n: sharded_like(part.detach(), self.masters[n]) for n, part in self.shards.items()}

    @contextmanager
    def materialized(self) -> Iterator[None]:
        with self.storage.materialized():
            self._copy_all_changes()
            yield

    @contextmanager
    def as_sharded(self) -> Iterator[None]:
        """Make the optimizer hold the sharded parts inside, with their states.

        Raises RuntimeError if an error has interrupted a step.
        """
        self._refuse_inconsistent()
        with self.materialized(), self._holding_sharded_parts():
            yield

    @contextmanager
    def _holding_sharded_parts(self) -> Iterator[None]:
        parts = self.shards
        self.sharded_parts = {name: nn.Parameter(tensor) for name, tensor in self.sharded().items()}
        self._replace({part: self.sharded_parts[name] for name, part in parts.items()}, _to_shard)
        try:
            yield
        finally:
            self._replace(
                {self.sharded_parts[name]: part for name, part in parts.items()}, _to_part
            )
            self.sharded_parts = {}
            for tile in [*self.device_tiles, *self.host_tiles]:
                self._copy_back(tile)

    def checkpoint_masters(self) -> Mapping[str, Tensor]:
        return {**self.masters, **self.sharded_parts}

    def load_target(self, name: str, entry: str, shape: torch.Size) -> Tensor | None:
        if shape != self.masters[name].shape:
            return None
        stored = self.storage.mapped_state(name, entry)
        return None if stored is None else sharded_like(stored, self.masters[name])

    def close(self) -> None:
        self.offloaded_gradients.close()
        self._staging.close()
        self.storage.close()


def _cloned(value: Any) -> Any:
    """Return a copy of a state that is not per element, which each piece updates."""
    return value.clone() if isinstance(value, Tensor) else value


def sharded_like(part: Tensor, master: Tensor) -> Tensor:
    """Return a part as a shard if its master is one, in the same memory."""
    return as_shard(part, master) if isinstance(master, DTensor) else part


def _to_shard(value: Tensor, old: Tensor, new: Any) -> Tensor:
    if value.dim() == 0 or value.shape != old.shape:
        return value
    return sharded_like(value, new)


def _to_part(value: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Return this rank's part of a state tensor on the device of the parameter's part.

    Step counts may stay on the host; fused kernels need them on the parameter's device.
    """
    part = local_part(value)
    stays = part.dim() == 0 and part.device.type != old.device.type
    return part if stays else part.to(new.device)

"""The optimizer in host memory: fp32 parts, moments and the update; shards are copied back.

[Note: what is copied when]
Gradients arrive during backward (``offloaded_gradients``); ``gradients`` waits for the last one
because the norm reads them next. ``step`` goes tile by tile (``tiles.py``): the update reads parts
and gradients of a tile on the host; the result is cast piece by piece into staging buffers, whose
copies to the device run while the next tile is computed. Nothing waits for the last of them: the
next use of a shard is on the same stream, behind it. Shards can be written to from outside in
between (a load, GatheredParameters); one whose version is not the one that ``_copy_back`` left
when a step begins is taken over before it is updated.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from dsconfig import tiles
from dsengine.optimizers.binding import Binding, proves_elementwise
from dsengine.tiers import memory
from dsengine.tiers.offloaded_gradients import OffloadedGradients
from dsengine.tiers.settings import OffloadSettings
from dsengine.tiers.staging import Staging
from dsengine.tiers.tiles import (
    Piece,
    Tile,
    divide_into_tiles,
    in_parts,
    states_per_element,
    stepping_pieces,
)
from dsengine.torch_private import as_shard, local_part, step_hooks_once, version_of

BEGUN_AT_ONCE = 2**20
"""Elements whose states a first step makes before they go to their places: twice for so few."""


class HostBinding(Binding):
    """Holds an optimizer to fp32 copies of this rank's parts, on the host.

    A step updates tile by tile (``sub_group_size``, and no more than a staging buffer holds), and
    copies each updated tile to the device while the next one is computed. The first ``1 - ratio``
    of the elements stay on the device. Only optimizers that treat each element alone can be
    divided so. Raises ValueError for any other.
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
        if not proves_elementwise(optimizer):
            raise ValueError(
                f"{type(optimizer).__name__} cannot be offloaded: its update of one element needs "
                "others, or cannot be tried. Use AdamW, Adam, SGD or Adagrad, or remove "
                "offload_optimizer"
            )
        self.optimizer = optimizer
        self.masters = masters
        self.settings = settings
        self.uses_parts = True
        self._pin = settings.pin_memory and torch.cuda.is_available()
        sizes = {n: local_part(masters[n]).numel() for n in self._names_in_order()}
        on_device, on_host = tiles.host_share(sizes, settings.ratio)
        self._adopt(
            {n: self._part(masters[n], host_masters.pop(n, None), n in on_device) for n in sizes}
        )
        self._entries = states_per_element(optimizer)
        elements = self._tile_elements()
        self.device_tiles = divide_into_tiles(on_device, settings.sub_group_size)
        self.host_tiles = divide_into_tiles(on_host, elements)
        self._staging = Staging(pin=self._pin)
        self.offloaded_gradients = OffloadedGradients(
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
        self._changed: set[str] = set()
        """The shards that others had written to when the step that is under way began."""
        self._begun: dict[str, dict[str, Tensor]] = {}
        """States of parts some of whose pieces have made their first step."""
        self._is_torn = False
        """From the first tile of a step to the last; for good when an error has ended it."""
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
        """Return the sums of the offloaded ones, in fp32, where their parts are."""
        self._gradients = {name: each for name, each in reduced if name in self.offloaded_gradients}
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return list(self._gradients.values())

    def hand_over_gradients(self) -> None:
        """Nothing: each tile is given its gradients when it is updated."""

    def drop_gradients(self) -> None:
        self._gradients = {}

    def _tile_elements(self) -> int:
        return tiles.tile_elements(self.settings.sub_group_size)

    def step(self) -> None:
        """Update all tiles, those of the device first.

        Raises RuntimeError when an error has ended an earlier step between two tiles.
        """
        self._refuse_torn()
        self._learn_entries()
        step_hooks_once(self.optimizer, self._step_tiles)
        memory.trim_heap()

    def _learn_entries(self) -> None:
        """Hear of what the optimizer keeps for each element by now: a load may bring options."""
        self._entries = [*dict.fromkeys([*self._entries, *states_per_element(self.optimizer)])]

    def _step_tiles(self) -> None:
        self._note_changes()
        self._is_torn = True
        for tile in self._to_update():
            self._update(tile)
        self._is_torn = False

    def _to_update(self) -> Iterator[Tile]:
        yield from self.device_tiles
        yield from self.host_tiles

    def _refuse_torn(self) -> None:
        if self._is_torn:
            raise RuntimeError(
                "an error has ended a step of the offloaded optimizer: some weights are updated, "
                "others are not. Build the engine anew and load the last checkpoint"
            )

    @torch.no_grad()
    def _version(self, name: str) -> int:
        return version_of(local_part(self.masters[name]))

    def mark_in_sync(self, name: str) -> None:
        self._written[name] = self._version(name)

    def _note_changes(self) -> None:
        self._changed = {n for n in self.parts if self._version(n) != self._written[n]}

    def _take_all_changes(self) -> None:
        self._note_changes()
        for tile in [*self.device_tiles, *self.host_tiles]:
            self._take_changes(tile)
        for name in self._changed:
            self.mark_in_sync(name)

    def _update(self, tile: Tile) -> None:
        self._take_changes(tile)
        due = [piece for piece in tile.pieces if piece.name in self._gradients]
        self._step_pieces([piece for piece in due if self._has_state(piece)])
        for pieces in in_parts([e for e in due if not self._has_state(e)], BEGUN_AT_ONCE):
            self._step_pieces(pieces)
        self._copy_back(tile)

    def _has_state(self, piece: Piece) -> bool:
        return bool(self.optimizer.state.get(self.parts[piece.name]))

    def _step_pieces(self, pieces: Sequence[Piece]) -> None:
        """Update them by the optimizer's own step, which sees nothing else."""
        stepped = {piece: self._stepped(piece) for piece in pieces}
        in_groups = {self.parts[piece.name]: each for piece, each in stepped.items()}
        with stepping_pieces(self.optimizer, in_groups):
            self.optimizer.step()
        for piece, each in stepped.items():
            self._keep(piece, self.optimizer.state.pop(each, {}))

    def _stepped(self, piece: Piece) -> nn.Parameter:
        """A parameter of this piece alone, with its gradient and its state."""
        part = self.parts[piece.name]
        each = nn.Parameter(self._weights(piece), requires_grad=part.requires_grad)
        each.grad = piece.of(self._gradients[piece.name])
        state = self.optimizer.state.get(part)
        if state:
            own = self._moments(piece)
            self.optimizer.state[each] = {
                name: own[name] if name in own else _own(value) for name, value in state.items()
            }
        return each

    def _keep(self, piece: Piece, state: dict[str, Any]) -> None:
        """Bring what a step has made anew to its place; keep a part's state when it is whole."""
        places = self._moments(piece) if state else {}
        for name, place in places.items():
            if name in state and state[name] is not place:
                place.copy_(state[name])
        if state and piece.last:
            part = self.parts[piece.name]
            whole = self._at_rest(piece.name)
            self.optimizer.state[part] = {
                name: whole[name] if name in places else value for name, value in state.items()
            }
            self._begun.pop(piece.name, None)

    def _weights(self, piece: Piece) -> Tensor:
        """This piece of its part: a flat view, in memory while its tile is updated."""
        return piece.of(self.parts[piece.name].detach())

    def _moments(self, piece: Piece) -> dict[str, Tensor]:
        """By name, its pieces of the states that are kept for each element; views as well."""
        whole = self._at_rest(piece.name)
        return {name: piece.of(whole[name]) for name in self._entries if name in whole}

    def _at_rest(self, name: str) -> dict[str, Tensor]:
        """By name, what holds a part's states for each element between steps; made if need be."""
        part = self.parts[name]
        if state := self.optimizer.state.get(part):
            return state
        if name not in self._begun:
            self._begun[name] = {
                entry: memory.empty_on_device_of(part, part.shape, pin=False)
                for entry in self._entries
            }
        return self._begun[name]

    @torch.no_grad()
    def _take_changes(self, tile: Tile) -> None:
        """Take over shards that were written to from outside (a load, GatheredParameters)."""
        for piece in tile.pieces:
            if piece.name in self._changed:
                shard = local_part(self.masters[piece.name])
                self._weights(piece).copy_(piece.of(shard))

    @torch.no_grad()
    def _copy_back(self, tile: Tile) -> None:
        for piece in tile.pieces:
            weights, shard = self._weights(piece), local_part(self.masters[piece.name])
            if memory.in_same_memory(weights, shard):
                piece.of(shard).copy_(weights)
            else:
                self._staging.bring(weights, piece.of(shard))
            self._written[piece.name] = self._version(piece.name)

    def sharded(self) -> dict[str, Tensor]:
        """Return the fp32 parts as shards of whole parameters, by name; same memory."""
        return {n: sharded_like(part.detach(), self.masters[n]) for n, part in self.parts.items()}

    @contextmanager
    def materialized(self) -> Iterator[None]:
        self._take_all_changes()
        yield

    @contextmanager
    def as_sharded(self) -> Iterator[None]:
        """Let the optimizer hold the sharded fp32 parts inside; its state follows.

        Raises RuntimeError when an error has ended a step between two tiles.
        """
        self._refuse_torn()
        parts = self.parts
        self._take_all_changes()
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
        self.offloaded_gradients.close()
        self._staging.close()


def _own(value: Any) -> Any:
    """A state that counts for all elements, for one piece: in place it would count twice."""
    return value.clone() if isinstance(value, Tensor) else value


def sharded_like(part: Tensor, master: Tensor) -> Tensor:
    """Return a part of a master as a shard, where that is one; same memory."""
    return as_shard(part, master) if isinstance(master, DTensor) else part


def _to_shard(value: Tensor, old: Tensor, new: Any) -> Tensor:
    if value.dim() == 0 or value.shape != old.shape:
        return value
    return sharded_like(value, new)


def _to_part(value: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Return a state tensor's part, where the parameter's part is.

    A step count is there too, or on the host: fused kernels want it beside the parameter.
    """
    part = local_part(value)
    stays = part.dim() == 0 and part.device.type != old.device.type
    return part if stays else part.to(new.device)

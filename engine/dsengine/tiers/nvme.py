"""The optimizer on NVMe: fp32 parts and moments rest in a file and visit host memory by tile.

[Note: the way of a tile]
The file holds segments one after the other: the fp32 parts, then each kind of moment, each of them
with the tiles in order. While a tile is updated its pieces of the segments lie in one of a few
buffers, and what the optimizer steps are views of it. When it is done its buffer is written, block
by block, and each block that is written is filled from the next tile that has no buffer yet; so
tiles are read ahead and written behind while the others are updated. A slow disk slows the step
down instead of filling the memory. Gradients stay in host memory.

[Note: whole states]
A parameter's states lie in one stretch of a segment each, through tiles. So whoever asks for them
as they are (a checkpoint, a script) gets views of the file itself, mapped for as long as they are
looked at: the kernel brings what is read, page by page, and takes it away again.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dsconfig import tiles
from dsengine.tiers import memory
from dsengine.tiers.files import (
    Buffer,
    Extent,
    FileIO,
    UnnamedFile,
    View,
    aligned,
    fresh_directory,
    remove_directory,
    wait,
)
from dsengine.tiers.host import HostBinding, sharded_like
from dsengine.tiers.settings import OffloadSettings
from dsengine.tiers.tiles import Piece, Tile, states_per_element
from dsengine.torch_private import local_part


class NvmeBinding(HostBinding):
    """A HostBinding whose host tiles are in a file between their updates."""

    PINS_PARTS = False
    """They leave for their file at once, and torch keeps what was pinned for ever."""

    def __init__(
        self,
        optimizer: Optimizer,
        masters: Mapping[str, nn.Parameter],
        settings: OffloadSettings,
        host_masters: dict[str, Tensor],
    ) -> None:
        super().__init__(optimizer, masters, settings, host_masters)
        self._places: dict[str, int] = {}
        """Where a parameter's elements begin in each segment."""
        elements = 0
        for tile in self.host_tiles:
            for piece in tile.pieces:
                self._places.setdefault(piece.name, elements)
                elements += piece.elements
        self._segment_bytes = aligned(elements * tiles.ELEMENT_BYTES)
        needed = self._visiting * self._segment_bytes
        self.directory = fresh_directory(settings.nvme_path or ".", "optimizer", needed)
        self._file = UnnamedFile(self.directory / "states", needed)
        self._io = FileIO(settings.in_flight, settings.block_bytes)
        count = tiles.buffers(settings.buffer_count, self._visiting, len(self.host_tiles))
        size = self._visiting * _bytes_of(self.host_tiles[0]) if self.host_tiles else 0
        self._buffers = [Buffer(size) for _ in range(count)]
        self._moving: dict[int, list[Future[None]]] = {}
        """By buffer: what must end before the tile in it is touched."""
        self._in_hand: dict[str, tuple[int, Tensor]] = {}
        """By parameter: where its piece of the visiting tile begins, and the segments of that."""
        self._shown: View | None = None
        """Views of the file, while it is mapped."""
        with self._file.mapped() as view:
            self._leave_memory(view)

    @property
    def _visiting(self) -> int:
        """How many tensors of a tile's size move when it is updated."""
        return 1 + len(self._entries)

    def _tile_elements(self) -> int:
        return tiles.filed_tile_elements(self.settings.sub_group_size, self._visiting)

    def _extent(self, number: int | None) -> Extent | None:
        """Where a tile is in the file; None for none, and for one that there is not."""
        if number is None or number >= len(self.host_tiles):
            return None
        first = number * _bytes_of(self.host_tiles[0])
        starts = (each * self._segment_bytes + first for each in range(self._visiting))
        return self._file.part(tuple(starts), _bytes_of(self.host_tiles[number]))

    def _to_update(self) -> Iterator[Tile]:
        """Those of the device; then the others one by one, each in hand until the next is asked
        for, and written behind."""
        yield from self.device_tiles
        count = len(self._buffers)
        for number in range(count):
            self._move(number, read=number)
        for number, tile in enumerate(self.host_tiles):
            self._take_in_hand(tile, number % count)
            yield tile
            self._in_hand = {}
            self._move(number % count, write=number, read=number + count)
        self._settle()

    def _move(self, buffer: int, *, write: int | None = None, read: int | None = None) -> None:
        """Begin to write a tile from ``buffer``, and to read another, if there is one, into it."""
        source, target = self._extent(read), self._extent(write)
        if source or target:
            self._moving[buffer] = self._io.exchange(
                self._buffers[buffer], write=target, read=source
            )

    def _take_in_hand(self, tile: Tile, buffer: int) -> None:
        wait(self._moving.pop(buffer, []))
        segments, start = self._buffers[buffer].segments(self._visiting, tile.elements), 0
        for piece in tile.pieces:
            self._in_hand[piece.name] = piece.start, segments[:, start : start + piece.elements]
            start += piece.elements

    def _settle(self) -> None:
        for buffer in list(self._moving):
            wait(self._moving.pop(buffer))

    def _weights(self, piece: Piece) -> Tensor:
        held = self._held(piece)
        return super()._weights(piece) if held is None else held[0]

    def _moments(self, piece: Piece) -> dict[str, Tensor]:
        held = self._held(piece)
        if held is None:
            return super()._moments(piece)
        return dict(zip(self._entries, held[1:], strict=True))

    def _held(self, piece: Piece) -> Tensor | None:
        """(segments, elements) of a piece in the buffer of the tile that is visiting."""
        if piece.name not in self._in_hand:
            return None
        start, segments = self._in_hand[piece.name]
        return segments[:, piece.start - start : piece.stop - start]

    def _at_rest(self, name: str) -> dict[str, Tensor]:
        if name not in self._places:
            return super()._at_rest(name)
        return {entry: _nothing() for entry in self._entries}

    def _views_of(self, name: str, view: View) -> tuple[Tensor, dict[str, Tensor]]:
        """Views of the file for a part, and for each of its states."""
        shape, length = local_part(self.masters[name]).shape, self._segment_bytes
        starts = (
            self._places[name] + each * length // tiles.ELEMENT_BYTES
            for each in range(self._visiting)
        )
        weights, *moments = (view(start, shape.numel()).view(shape) for start in starts)
        return weights, dict(zip(self._entries, moments, strict=True))

    @torch.no_grad()
    def _leave_memory(self, view: View) -> None:
        """Write what is not in the file yet; leave empty tensors in the place of all."""
        for name in self._places:
            part, (weights, moments) = self.parts[name], self._views_of(name, view)
            _bring(part.detach(), weights)
            part.data = _nothing()
            state = self.optimizer.state.get(part) or {}
            for entry in state.keys() & moments.keys():
                _bring(state[entry], moments[entry])
                state[entry] = _nothing()

    @contextmanager
    def materialized(self) -> Iterator[None]:
        """Let parts and states be views of the file."""
        with self._file.mapped() as view:
            for name in self._places:
                self.parts[name].data, moments = self._views_of(name, view)
                state = self.optimizer.state.get(self.parts[name]) or {}
                state.update({entry: moments[entry] for entry in state.keys() & moments.keys()})
            self._shown = view
            try:
                self._take_all_changes()
                yield
            finally:
                self._shown = None
                self._leave_memory(view)

    @contextmanager
    def as_sharded(self) -> Iterator[None]:
        self._refuse_torn()
        with self.materialized(), super().as_sharded():
            yield

    def load_target(self, name: str, entry: str) -> Tensor | None:
        if self._shown is None or name not in self._places:
            return None
        self._refuse_unfiled({entry})
        return sharded_like(self._views_of(name, self._shown)[1][entry], self.masters[name])

    def _learn_entries(self) -> None:
        self._refuse_unfiled(states_per_element(self.optimizer))

    def _refuse_unfiled(self, entries: Iterable[str]) -> None:
        """Raise ValueError for a state that the file, which is made once, has no segment for."""
        if unfiled := [each for each in entries if each not in self._entries]:
            raise ValueError(
                f"the optimizer's file at nvme_path has no room for {', '.join(unfiled)}: give "
                "optimizer.params the options that ask for it (momentum, amsgrad ...), or leave "
                "the states out with load_optimizer_states=False"
            )

    def close(self) -> None:
        """Remove the file."""
        super().close()
        self._io.close()
        self._file.close()
        remove_directory(self.directory)


def _bytes_of(tile: Tile) -> int:
    """Of one segment of it, in a file or in a buffer."""
    return aligned(tile.elements * tiles.ELEMENT_BYTES)


def _nothing() -> Tensor:
    return memory.empty_on_host((0,), pin=False)


def _bring(value: Tensor, place: Tensor) -> None:
    if value.data_ptr() != place.data_ptr():
        place.copy_(value)

"""The optimizer on NVMe: fp32 parts and moments are stored in a file and loaded by tile.

[Note: how a tile moves]
The file has one segment for the fp32 parts and one for each kind of moment, each with the tiles in
order. While a tile is updated, its slices of the segments are in one of a few buffers, and the
optimizer steps views of it. When it is done its buffer is written block by block, and each written
block is refilled from the next tile without a buffer; so tiles are read ahead and written behind
while others are updated. A slow disk slows the step down but does not use more memory. Gradients
stay in host memory.

[Note: full states]
A parameter's states are contiguous in each segment, across tiles. So code that needs them in full
(a checkpoint, a script) gets views of the file itself, mapped while they are in use: the kernel
pages data in and out.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

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
from dsengine.tiers.storage import HostStorage
from dsengine.tiers.tiles import Piece, Tile


@dataclass(eq=False)
class FileStorage(HostStorage):
    """Parts and states of host tiles in a file between updates; those on the device in memory."""

    def __post_init__(self) -> None:
        self._offsets: dict[str, int] = {}
        """Offset of a parameter's elements in each segment."""
        elements = 0
        for tile in self.tiles:
            for piece in tile.pieces:
                self._offsets.setdefault(piece.name, elements)
                elements += piece.elements
        self._shapes = {name: self.parts[name].shape for name in self._offsets}
        self._segment_bytes = aligned(elements * tiles.ELEMENT_BYTES)
        per_tile = self._tensors_per_tile
        needed = per_tile * self._segment_bytes
        self.directory = fresh_directory(self.settings.nvme_path or ".", "optimizer", needed)
        self._file = UnnamedFile(self.directory / "states", needed)
        self._io = FileIO(self.settings.in_flight, self.settings.block_bytes)
        count = tiles.buffers(self.settings.buffer_count, per_tile, len(self.tiles))
        size = per_tile * _bytes_of(self.tiles[0]) if self.tiles else 0
        self._buffers = [Buffer(size) for _ in range(count)]
        self._transfers: dict[int, list[Future[None]]] = {}
        """Pending transfers by buffer."""
        self._loaded: dict[str, tuple[int, Tensor]] = {}
        """By parameter: the start of its piece in the loaded tile, and the segments of that piece.
        """
        self._view: View | None = None
        """The mapped file inside ``materialized``, otherwise None."""
        with self._file.mapped() as view:
            self._move_to_file(view)

    @property
    def _tensors_per_tile(self) -> int:
        """Number of tile-sized tensors that are transferred per update."""
        return 1 + len(self.entries)

    def _extent(self, number: int | None) -> Extent | None:
        """Return a tile's extent in the file; None for no tile or a nonexistent one."""
        if number is None or number >= len(self.tiles):
            return None
        first = number * _bytes_of(self.tiles[0])
        starts = (i * self._segment_bytes + first for i in range(self._tensors_per_tile))
        return self._file.part(tuple(starts), _bytes_of(self.tiles[number]))

    def loaded(self) -> Iterator[Tile]:
        count = len(self._buffers)
        for number in range(count):
            self._transfer(number, read=number)
        for number, tile in enumerate(self.tiles):
            self._load_tile(tile, number % count)
            yield tile
            self._loaded = {}
            self._transfer(number % count, write=number, read=number + count)
        self._wait_all()

    def _transfer(self, buffer: int, *, write: int | None = None, read: int | None = None) -> None:
        """Start writing a tile from ``buffer`` and reading another one, if any, into it."""
        source, target = self._extent(read), self._extent(write)
        if source or target:
            self._transfers[buffer] = self._io.exchange(
                self._buffers[buffer], write=target, read=source
            )

    def _load_tile(self, tile: Tile, buffer: int) -> None:
        wait(self._transfers.pop(buffer, []))
        segments, start = self._buffers[buffer].segments(self._tensors_per_tile, tile.elements), 0
        for piece in tile.pieces:
            self._loaded[piece.name] = piece.start, segments[:, start : start + piece.elements]
            start += piece.elements

    def _wait_all(self) -> None:
        for buffer in list(self._transfers):
            wait(self._transfers.pop(buffer))

    def weights(self, piece: Piece) -> Tensor:
        segments = self._loaded_segments(piece)
        return super().weights(piece) if segments is None else segments[0]

    def moments(self, piece: Piece) -> dict[str, Tensor]:
        segments = self._loaded_segments(piece)
        if segments is None:
            return super().moments(piece)
        return dict(zip(self.entries, segments[1:], strict=True))

    def _loaded_segments(self, piece: Piece) -> Tensor | None:
        """Return (segments, elements) of a piece in the loaded tile; None if it is not loaded."""
        if piece.name not in self._loaded:
            return None
        start, segments = self._loaded[piece.name]
        return segments[:, piece.start - start : piece.stop - start]

    def _stored_states(self, name: str) -> dict[str, Tensor]:
        if name not in self._offsets:
            return super()._stored_states(name)
        return {entry: _empty() for entry in self.entries}

    def _views_of(self, name: str, view: View) -> tuple[Tensor, dict[str, Tensor]]:
        """Return views of the file for a part and its states."""
        shape, length = self._shapes[name], self._segment_bytes
        starts = (
            self._offsets[name] + i * length // tiles.ELEMENT_BYTES
            for i in range(self._tensors_per_tile)
        )
        weights, *moments = (view(start, shape.numel()).view(shape) for start in starts)
        return weights, dict(zip(self.entries, moments, strict=True))

    @torch.no_grad()
    def _move_to_file(self, view: View) -> None:
        """Write tensors that are not in the file yet, and replace all by empty ones."""
        for name in self._offsets:
            part, (weights, moments) = self.parts[name], self._views_of(name, view)
            _copy_to_file(part.detach(), weights)
            part.data = _empty()
            state = self.optimizer.state.get(part) or {}
            for entry in state.keys() & moments.keys():
                _copy_to_file(state[entry], moments[entry])
                state[entry] = _empty()

    @contextmanager
    def materialized(self) -> Iterator[None]:
        """Make parts and states views of the file inside."""
        with self._file.mapped() as view:
            for name in self._offsets:
                self.parts[name].data, moments = self._views_of(name, view)
                state = self.optimizer.state.get(self.parts[name]) or {}
                state.update({entry: moments[entry] for entry in state.keys() & moments.keys()})
            self._view = view
            try:
                yield
            finally:
                self._view = None
                self._move_to_file(view)

    def mapped_state(self, name: str, entry: str) -> Tensor | None:
        if self._view is None or name not in self._offsets:
            return None
        self.update_entries({entry})
        return self._views_of(name, self._view)[1][entry]

    def update_entries(self, entries: Iterable[str]) -> None:
        """Raise ValueError for a state without a segment in the file, whose layout is fixed."""
        if unfiled := [entry for entry in entries if entry not in self.entries]:
            raise ValueError(
                f"the optimizer's file at nvme_path has no segment for {', '.join(unfiled)}: set "
                "the options in optimizer.params that require it (momentum, amsgrad ...), or "
                "skip the states with load_optimizer_states=False"
            )

    def close(self) -> None:
        """Remove the file."""
        self._io.close()
        self._file.close()
        remove_directory(self.directory)


def _bytes_of(tile: Tile) -> int:
    """Return the bytes of one segment of a tile, in a file or buffer."""
    return aligned(tile.elements * tiles.ELEMENT_BYTES)


def _empty() -> Tensor:
    return memory.empty_on_host((0,), pin=False)


def _copy_to_file(value: Tensor, target: Tensor) -> None:
    if value.data_ptr() != target.data_ptr():
        target.copy_(value)

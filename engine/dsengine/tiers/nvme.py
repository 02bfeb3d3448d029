"""The optimizer on NVMe: fp32 parts and moments rest in files and visit host memory by tile.

[Note: the way of a tile]
A tile's file holds segments of equal length: the fp32 parts, then each kind of moment. While a
tile is updated its segments lie in one of a few buffers, and what the optimizer steps are views
of it. When it is done its buffer is written, block by block, and each block that is written is
filled from the next tile that has no buffer yet; so tiles are read ahead and written behind while
the others are updated. A slow disk slows the step down instead of filling the memory. Gradients
stay in host memory.
"""

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from dsconfig import tiles
from dsengine.tiers.files import Buffer, FileIO, TileFile, fresh_directory, wait
from dsengine.tiers.host import HostBinding
from dsengine.tiers.settings import OffloadSettings
from dsengine.tiers.tiles import Piece, Tile
from dsengine.torch_private import local_part


class NvmeBinding(HostBinding):
    """A HostBinding whose host tiles are in files between their updates."""

    PINS_PARTS = False
    """They leave for their files at once, and torch keeps what was pinned for ever."""

    def __init__(
        self,
        optimizer: Optimizer,
        masters: Mapping[str, nn.Parameter],
        settings: OffloadSettings,
        host_masters: dict[str, Tensor],
    ) -> None:
        super().__init__(optimizer, masters, settings, host_masters)
        bytes_each = self._visiting * tiles.ELEMENT_BYTES
        sizes = [tile.elements * bytes_each for tile in self.host_tiles]
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.directory = fresh_directory(settings.nvme_path or ".", "optimizer", rank, sum(sizes))
        self._files = [
            TileFile(self.directory / f"tile{number}", size) for number, size in enumerate(sizes)
        ]
        self._io = FileIO(settings.in_flight, settings.block_bytes)
        count = tiles.buffers(settings.buffer_count, self._visiting, len(sizes))
        self._buffers = [Buffer(max(sizes, default=0)) for _ in range(count)]
        self._moving: dict[int, list[Future[None]]] = {}
        """By buffer: what must end before the tile in it is touched."""
        self._filed = {piece.name for tile in self.host_tiles for piece in tile.pieces}
        self._in_hand: dict[Piece, Tensor] = {}
        """(segments, elements) in a buffer for each piece of the tile that is visiting."""
        self._leave_memory()

    @property
    def _visiting(self) -> int:
        return 1 + len(self._entries)

    def _to_update(self) -> Iterator[Tile]:
        yield from self.device_tiles
        yield from self._visited(writing=True)

    def _visited(self, *, writing: bool) -> Iterator[Tile]:
        """Yield tiles one after the other, each in hand until the next is asked for.

        ``writing``: what was done to a tile is written behind.
        """
        count = len(self._buffers)
        for number in range(min(count, len(self._files))):
            self._move(number, read=number)
        for number, tile in enumerate(self.host_tiles):
            self._take_in_hand(tile, number % count)
            yield tile
            self._in_hand = {}
            self._move(number % count, write=number if writing else None, read=number + count)
        self._settle()

    def _move(self, buffer: int, *, write: int | None = None, read: int | None = None) -> None:
        """Begin to write a tile from ``buffer``, and to read another, if there is one, into it."""
        source = None if read is None or read >= len(self._files) else self._files[read]
        target = None if write is None else self._files[write]
        if source or target:
            self._moving[buffer] = self._io.exchange(
                self._buffers[buffer], write=target, read=source
            )

    def _take_in_hand(self, tile: Tile, buffer: int) -> None:
        wait(self._moving.pop(buffer, []))
        held = self._buffers[buffer].elements[: self._visiting * tile.elements]
        segments, start = held.view(self._visiting, tile.elements), 0
        for piece in tile.pieces:
            self._in_hand[piece] = segments[:, start : start + piece.elements]
            start += piece.elements

    def _settle(self) -> None:
        for buffer in list(self._moving):
            wait(self._moving.pop(buffer))

    def _weights(self, piece: Piece) -> Tensor:
        held = self._in_hand.get(piece)
        return super()._weights(piece) if held is None else held[0]

    def _moments(self, piece: Piece) -> dict[str, Tensor]:
        held = self._in_hand.get(piece)
        if held is None:
            return super()._moments(piece)
        return dict(zip(self._entries, held[1:], strict=True))

    def _at_rest(self, name: str) -> dict[str, Tensor]:
        if name not in self._filed:
            return super()._at_rest(name)
        return {entry: torch.empty(0) for entry in self._entries}

    @torch.no_grad()
    def _leave_memory(self) -> None:
        """Write all host tiles, and leave empty tensors in their place."""
        for number, tile in enumerate(self.host_tiles):
            buffer = number % len(self._buffers)
            self._take_in_hand(tile, buffer)
            for piece in tile.pieces:
                part = self.parts[piece.name]
                state = self.optimizer.state.get(part) or {}
                held = self._in_hand[piece]
                held[0].copy_(piece.of(part.detach()))
                for name, moment in self._moments(piece).items():
                    if name in state:
                        moment.copy_(piece.of(state[name]))
                if piece.last:
                    part.data = torch.empty(0)
                    state.update({name: torch.empty(0) for name in self._entries if name in state})
            self._in_hand = {}
            self._move(buffer, write=number)
        self._settle()

    @torch.no_grad()
    def _come_to_memory(self) -> None:
        """Read all host tiles into tensors of their own."""
        for tile in self._visited(writing=False):
            for piece in tile.pieces:
                part = self.parts[piece.name]
                state = self.optimizer.state.get(part) or {}
                moments = self._moments(piece)
                if piece.start == 0:
                    shape = local_part(self.masters[piece.name]).shape
                    part.data = torch.empty(shape)
                    state.update({name: torch.empty(shape) for name in moments if name in state})
                piece.of(part.detach()).copy_(self._in_hand[piece][0])
                for name in moments:
                    if name in state:
                        piece.of(state[name]).copy_(moments[name])

    @contextmanager
    def as_sharded(self) -> Iterator[None]:
        """Bring everything into host memory for as long as this is entered."""
        self._refuse_torn()
        self._come_to_memory()
        try:
            with super().as_sharded():
                yield
        finally:
            self._leave_memory()

    def close(self) -> None:
        """Remove the files."""
        super().close()
        self._io.close()
        for file in self._files:
            file.close()
        shutil.rmtree(self.directory, ignore_errors=True)

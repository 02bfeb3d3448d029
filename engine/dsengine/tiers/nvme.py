"""The optimizer on NVMe: fp32 parts and moments rest in files and visit host memory by tile.

[Note: the way of a tile]
A tile's file holds segments of equal length: the fp32 parts, then each kind of moment. While a
tile is updated its segments lie in one buffer and the optimizer's tensors are views of it.
``pipeline_read`` reads the next tile meanwhile, ``pipeline_write`` lets the last one be written;
each needs a buffer more. A buffer is given out again only when its write has ended, so a slow
disk slows the step down instead of filling the memory. Gradients stay in host memory.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from dsengine.tiers.files import Buffer, FileIO, TileFile, fresh_directory, wait
from dsengine.tiers.host import HostBinding
from dsengine.tiers.settings import OffloadSettings
from dsengine.tiers.tiles import Tile, state_entries
from dsengine.torch_private import local_part

ELEMENT_BYTES = 4


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
        self._entries = _moments_of(optimizer)
        self._segments = 1 + len(self._entries)
        largest = max((tile.elements for tile in self.host_tiles), default=0)
        sizes = [self._segments * tile.elements * ELEMENT_BYTES for tile in self.host_tiles]
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.directory = fresh_directory(settings.nvme_path or ".", "optimizer", rank, sum(sizes))
        self._files = [
            TileFile(self.directory / f"tile{number}", size) for number, size in enumerate(sizes)
        ]
        self._io = FileIO(settings.threads, settings.block_bytes)
        extra = settings.pipeline_read + settings.pipeline_write
        count = max(1, settings.buffer_count // (self._segments + 1)) + extra
        self._buffers = [
            Buffer(self._segments * largest * ELEMENT_BYTES)
            for _ in range(min(count, max(1, len(self.host_tiles))))
        ]
        self._writing: dict[int, list[Future[None]]] = {}
        """By buffer: the writes that must end before it is given out again."""
        self._reading: dict[int, tuple[int, list[Future[None]]]] = {}
        """By tile: the buffer it is read into."""
        self._whole_in_memory = False
        for number in range(len(self.host_tiles)):
            self._page_out(number, self._free_buffer())
        self._drain()

    def step(self) -> None:
        for tile in self.device_tiles:
            self._update(tile)
        for number, tile in enumerate(self.host_tiles):
            buffer = self._page_in(number)
            if self.settings.pipeline_read and number + 1 < len(self.host_tiles):
                self._read_ahead(number + 1, busy=buffer)
            self._update(tile)
            self._page_out(number, buffer)
        self._drain()

    def _read_ahead(self, number: int, busy: int) -> None:
        if number not in self._reading:
            buffer = self._free_buffer(busy)
            reads = self._io.read(self._files[number], self._buffers[buffer])
            self._reading[number] = buffer, reads

    def _page_in(self, number: int) -> int:
        """Read a tile and let the optimizer's tensors be views of it; return its buffer."""
        self._read_ahead(number, busy=-1)
        buffer, reads = self._reading.pop(number)
        wait(reads)
        tile = self.host_tiles[number]
        for name, segment, view in self._views(tile, buffer):
            part = self.parts[name]
            if segment == 0:
                part.data = view
            elif self.optimizer.state.get(part):
                self.optimizer.state[part][self._entries[segment - 1]] = view
        return buffer

    def _page_out(self, number: int, buffer: int) -> None:
        """Write a tile from ``buffer`` and leave empty tensors in its place."""
        tile = self.host_tiles[number]
        for name, segment, view in self._views(tile, buffer):
            part = self.parts[name]
            state = self.optimizer.state.get(part) or {}
            current = part.data if segment == 0 else state.get(self._entries[segment - 1])
            if current is None:
                view.zero_()
            elif current.data_ptr() != view.data_ptr() or not view.numel():
                view.copy_(current)
            if segment > 0 and state:
                state[self._entries[segment - 1]] = view.new_empty(0)
        for name in tile.names:
            self.parts[name].data = torch.empty(0)
        writes = self._io.write(self._files[number], self._buffers[buffer])
        self._writing[buffer] = writes
        if not self.settings.pipeline_write:
            wait(writes)

    def _views(self, tile: Tile, buffer: int) -> Iterator[tuple[str, int, Tensor]]:
        """Yield (name, segment, view in the buffer) for all of a tile's tensors."""
        elements = self._buffers[buffer].elements
        for segment in range(self._segments):
            start = segment * tile.elements
            for name in tile.names:
                shape = local_part(self.masters[name]).shape
                yield name, segment, elements[start : start + shape.numel()].view(shape)
                start += shape.numel()

    def _free_buffer(self, busy: int = -1) -> int:
        """Return a buffer that is in no use, waiting for its write if need be."""
        taken = {busy, *(buffer for buffer, _ in self._reading.values())}
        free = [each for each in range(len(self._buffers)) if each not in taken]
        free.sort(key=lambda each: any(not f.done() for f in self._writing.get(each, [])))
        wait(self._writing.pop(free[0], []))
        return free[0]

    def _drain(self) -> None:
        for buffer in list(self._writing):
            wait(self._writing.pop(buffer))

    @contextmanager
    def as_sharded(self) -> Iterator[None]:
        """Bring everything into host memory for as long as this is entered."""
        for number, tile in enumerate(self.host_tiles):
            self._page_in(number)
            for name in tile.names:
                part = self.parts[name]
                part.data = part.data.clone()
                state = self.optimizer.state.get(part) or {}
                for entry in self._entries:
                    if entry in state:
                        state[entry] = state[entry].clone()
        try:
            with super().as_sharded():
                yield
        finally:
            for number in range(len(self.host_tiles)):
                self._page_out(number, self._free_buffer())
            self._drain()

    def close(self) -> None:
        """Remove the files."""
        super().close()
        self._drain()
        self._io.close()
        for file in self._files:
            file.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def _moments_of(optimizer: Optimizer) -> list[str]:
    """Return the names of the per-element states that this optimizer keeps."""
    probe = nn.Parameter(torch.zeros(1))
    probe.grad = torch.zeros(1)
    trial = copy(optimizer)
    trial.param_groups = [{**optimizer.param_groups[0], "params": [probe]}]
    trial.state = defaultdict(dict)
    trial.step()
    return state_entries(trial.state[probe], probe)

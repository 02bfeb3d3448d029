"""Copies between device and host through a fixed number of page-locked buffers.

[Note: pieces]
A copy runs beside the computation only from or to page-locked memory, and only between tensors of
one dtype. What travels is therefore cut into pieces, each cast on the host, on its way through a
buffer. There are PIECES of PIECE_BYTES, made when the first is needed: whoever is faster waits for
the other, and nothing grows.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from dsconfig import tiles
from dsengine.tiers import memory

Take = Callable[[Tensor, Tensor], None]
"""``take(into, piece)`` brings a piece that has arrived to where it belongs."""


class Staging:
    """Buffers, and the thread that empties them."""

    def __init__(self, *, pin: bool) -> None:
        self._pin = pin
        self._is_made = False
        self._free: SimpleQueue[Tensor] = SimpleQueue()
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: list[Future[None]] = []

    def send(self, source: Tensor, target: Tensor, take: Take) -> None:
        """Copy ``source`` from the device, in the order of its stream; ``take`` gets the pieces.

        Returns as soon as all copies are issued; ``settle`` when all are taken.
        """
        flat, into = source.reshape(-1), target.view(-1)
        step = tiles.PIECE_BYTES // flat.element_size()
        for start in range(0, flat.numel(), step):
            piece = flat[start : start + step]
            buffer = self._buffer()
            staged = buffer.view(piece.dtype)[: piece.numel()]
            staged.copy_(piece, non_blocking=True)
            arrived = _recorded(piece.device)
            place = into[start : start + piece.numel()]
            self._submit(arrived, take, place, staged, buffer)

    def bring(self, source: Tensor, target: Tensor) -> None:
        """Copy ``source``, on the host, into ``target`` on the device, in the order of its stream.

        ``source`` has been read when this returns; the copies may still be under way.
        """
        flat, into = source.view(-1), target.view(-1)
        step = tiles.PIECE_BYTES // into.element_size()
        for start in range(0, flat.numel(), step):
            place = into[start : start + step]
            buffer = self._buffer()
            staged = buffer.view(place.dtype)[: place.numel()]
            staged.copy_(flat[start : start + step])
            place.copy_(staged, non_blocking=True)
            self._submit(_recorded(place.device), None, place, staged, buffer)

    def settle(self) -> None:
        """Return when everything has arrived; raise what one piece failed with."""
        under_way, self._under_way = self._under_way, []
        for each in under_way:
            each.result()

    def close(self) -> None:
        self.settle()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _buffer(self) -> Tensor:
        """A buffer that nobody uses, waiting for one where all are in use."""
        if not self._is_made:
            self._is_made = True
            for _ in range(tiles.PIECES):
                room = memory.empty_on_host(
                    (tiles.PIECE_BYTES // tiles.ELEMENT_BYTES,), pin=self._pin
                )
                self._free.put(room.view(torch.uint8))
        return self._free.get()

    def _submit(
        self, arrived: Any, take: Take | None, place: Tensor, staged: Tensor, buffer: Tensor
    ) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "dsengine-staging")
        emptied = self._thread.submit(self._empty, arrived, take, place, staged, buffer)
        self._under_way.append(emptied)

    @torch.no_grad()
    def _empty(
        self, arrived: Any, take: Take | None, place: Tensor, staged: Tensor, buffer: Tensor
    ) -> None:
        try:
            if arrived is not None:
                arrived.synchronize()
            if take is not None:
                take(place, staged)
        finally:
            self._free.put(buffer)


def _recorded(device: torch.device) -> Any:
    """An event behind what has been issued on the current stream; None on the CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record()
    return event

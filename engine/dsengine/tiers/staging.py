"""Copies between device and host through a fixed number of page-locked buffers.

[Note: pieces]
A copy runs asynchronously only from or to page-locked memory, and only between tensors of one
dtype. So transfers are cut into pieces, each cast on the host while in a buffer. There are PIECES
buffers of PIECE_BYTES, allocated on first use: the faster side waits for the slower one, and memory
is bounded. They are page-locked whatever the config says of the states, or each copy would wait.

Pieces of the same target are consumed in the order of their copies: a target's thread is fixed.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from dsconfig import tiles
from dsengine.communication.devices import recorded_event, threads_on_device
from dsengine.tiers import memory
from dsengine.torch_private.dry_runs import is_fake

Consume = Callable[[Tensor, Tensor], None]
"""``consume(target, piece)`` handles a piece that has arrived."""


THREADS = 2
"""Threads that empty buffers: each operation uses several cores, the steps between them one."""


class Staging:
    """The buffers and the threads that empty them."""

    def __init__(self) -> None:
        self._is_allocated = False
        self._free: SimpleQueue[Tensor] = SimpleQueue()
        self._threads: list[ThreadPoolExecutor] = []
        self._thread_of: dict[int, int] = {}
        """Index by address of a target."""
        self._pending: list[Future[None]] = []

    def to_host(self, source: Tensor, target: Tensor, consume: Consume) -> None:
        """Copy ``source`` from the device, in stream order; ``consume`` gets the pieces.

        Returns once all copies are issued; ``wait`` waits until all are consumed.
        """
        flat, target = source.reshape(-1), target.view(-1)
        step = tiles.PIECE_BYTES // flat.element_size()
        for start in range(0, flat.numel(), step):
            piece = flat[start : start + step]
            buffer = self._buffer()
            staged = buffer.view(piece.dtype)[: piece.numel()]
            staged.copy_(piece, non_blocking=True)
            arrived = recorded_event(piece.device)
            destination = target[start : start + piece.numel()]
            self._submit(arrived, consume, destination, staged, buffer)

    def to_device(self, source: Tensor, target: Tensor) -> None:
        """Copy ``source``, on the host, into ``target`` on the device, in stream order.

        ``source`` has been read on return; the copies may still be running.
        """
        flat, target = source.view(-1), target.view(-1)
        step = tiles.PIECE_BYTES // target.element_size()
        for start in range(0, flat.numel(), step):
            destination = target[start : start + step]
            buffer = self._buffer()
            staged = buffer.view(destination.dtype)[: destination.numel()]
            staged.copy_(flat[start : start + step])
            destination.copy_(staged, non_blocking=True)
            self._submit(recorded_event(destination.device), None, destination, staged, buffer)

    def wait(self) -> None:
        """Wait until everything has arrived; then raise the first error."""
        pending, self._pending = self._pending, []
        wait(pending)
        for future in pending:
            future.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            for thread in self._threads:
                thread.shutdown()
            self._threads.clear()

    def _buffer(self) -> Tensor:
        """Return a free buffer; wait for one if all are in use."""
        if not self._is_allocated:
            self._is_allocated = True
            for _ in range(tiles.PIECES):
                buffer = memory.empty_on_host(
                    (tiles.PIECE_BYTES // tiles.ELEMENT_BYTES,), pin=memory.can_pin()
                )
                self._free.put(buffer.view(torch.uint8))
        return self._free.get()

    def _submit(
        self, arrived: Any, consume: Consume | None, target: Tensor, staged: Tensor, buffer: Tensor
    ) -> None:
        if is_fake(staged):  # in a dry run, whose mode serves one thread
            self._empty(arrived, consume, target, staged, buffer)
            return
        if not self._threads:
            self._threads = [threads_on_device(1, "dsengine-staging") for _ in range(THREADS)]
        next_thread = len(self._thread_of) % THREADS
        thread = self._threads[self._thread_of.setdefault(target.data_ptr(), next_thread)]
        emptied = thread.submit(self._empty, arrived, consume, target, staged, buffer)
        self._pending.append(emptied)

    @torch.no_grad()
    def _empty(
        self, arrived: Any, consume: Consume | None, target: Tensor, staged: Tensor, buffer: Tensor
    ) -> None:
        try:
            if arrived is not None:
                arrived.synchronize()
            if consume is not None:
                consume(target, staged)
        finally:
            self._free.put(buffer)

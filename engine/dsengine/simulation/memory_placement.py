"""Simulated host memory, files and device in a dry run, where every tensor is on the CPU.

[Note: where a tensor is]
Autograd refuses tensors of devices that torch was not built for, even fake ones. So every tensor is
on the CPU, and those in host memory are marked: the model as built, what the tiers allocate on the
host, and results of operators whose inputs are all marked. Moves between devices, which would do
nothing here, become copies with or without a mark. Files are tensors marked as such; nothing is
read or written, and work of threads is done immediately.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsconfig import tiles
from dsengine.tiers import mapped, memory, nvme, staging
from dsengine.tiers.files import Buffer, View
from dsengine.torch_private.tensors import local_part, replaced, storage_key

_Table = dict[int, "weakref.ref[Any]"]
"""Storages by key."""


class MemoryPlacement:
    """Tracks which storages are in host memory and which in files."""

    def __init__(self) -> None:
        self._on_host: _Table = {}
        self._in_files: _Table = {}
        self._target: _Table | None = None
        """Table for new storages; None: that of their inputs, if all are off the device."""

    def is_on_host(self, storage: torch.UntypedStorage) -> bool:
        return _contains(self._on_host, storage)

    def is_in_file(self, storage: torch.UntypedStorage) -> bool:
        return _contains(self._in_files, storage)

    def is_on_device(self, storage: torch.UntypedStorage) -> bool:
        return not (self.is_on_host(storage) or self.is_in_file(storage))

    def put_on_host(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            _add(self._on_host, tensor)

    def in_file(self, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a tensor that represents a file."""
        with self._creating_in(self._in_files):
            return torch.empty(elements, dtype=dtype)

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """Mark what the tiers allocate inside, and turn moves into copies."""
        with ExitStack() as stack:
            for holder, name, other in (
                (memory, "empty_on_host", self._empty_on_host),
                (memory, "empty_on_device_of", self._empty_beside),
                (
                    memory,
                    "in_same_memory",
                    lambda one, other: self.is_off_device(one) is self.is_off_device(other),
                ),
                (staging, "ThreadPoolExecutor", ImmediateExecutor),
                (nvme, "UnnamedFile", partial(_File, self)),
                (nvme, "Buffer", _Buffer),
                (nvme, "FileIO", _NoIO),
                (nvme, "fresh_directory", lambda *_: Path()),
                (nvme, "remove_directory", lambda _: None),
                (mapped, "fresh_directory", lambda *_: Path()),
                (mapped, "in_file", lambda _, data: self.in_file(data.numel(), data.dtype)),
            ):
                stack.enter_context(replaced(holder, name, other))
            stack.enter_context(_moves(self))
            yield

    def is_off_device(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is in host memory or in a file."""
        return not self.is_on_device(local_part(tensor).untyped_storage())

    def copied(self, move: Any, tensor: Tensor, dtype: torch.dtype, *, to_host: bool) -> Tensor:
        with self._creating_in(self._on_host if to_host else {}):
            return move(tensor, dtype, copy=True)

    def mark(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Record where the new storages of an operator's results are."""
        inputs, results = [*map(local_part, inputs)], [*map(local_part, results)]
        known = {storage_key(tensor) for tensor in inputs}
        table = self._target
        if table is None:
            table = self._on_host if inputs and all(map(self.is_off_device, inputs)) else {}
        for tensor in results:
            if storage_key(tensor) not in known:
                _add(table, tensor)

    def _empty_on_host(
        self, shape: Sequence[int], *, pin: bool, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        del pin
        with self._creating_in(self._on_host):
            return torch.empty(shape, dtype=dtype)

    def _empty_beside(
        self, part: Tensor, shape: Sequence[int], *, pin: bool, dtype: torch.dtype
    ) -> Tensor:
        del pin
        with self._creating_in(self._on_host if self.is_off_device(part) else {}):
            return torch.empty(shape, dtype=dtype)

    @contextmanager
    def _creating_in(self, table: _Table) -> Iterator[None]:
        before, self._target = self._target, table
        try:
            yield
        finally:
            self._target = before


def _contains(table: _Table, storage: torch.UntypedStorage) -> bool:
    reference = table.get(storage_key(storage))
    return reference is not None and reference() is storage


def _add(table: _Table, tensor: Tensor) -> None:
    storage = local_part(tensor).untyped_storage()
    key = storage_key(storage)

    def forget(gone: "weakref.ref[Any]") -> None:
        if table.get(key) is gone:
            del table[key]

    table[key] = weakref.ref(storage, forget)


class ImmediateExecutor:
    """An executor that runs each task in ``submit``."""

    def __init__(self, *_: Any) -> None:
        """Accept ThreadPoolExecutor's arguments."""

    def submit(self, do: Callable[..., Any], *args: Any) -> "Future[Any]":
        done = Future[Any]()
        done.set_result(do(*args))
        return done

    def shutdown(self) -> None:
        """Do nothing: no thread is used."""


class _File:
    """Replaces ``UnnamedFile``."""

    def __init__(self, placement: MemoryPlacement, path: Path, size: int) -> None:
        del path
        self._elements = placement.in_file(size // tiles.ELEMENT_BYTES)

    def part(self, *_: Any) -> None:
        """Nothing is read or written."""

    @contextmanager
    def mapped(self) -> Iterator[View]:
        yield lambda start, count: self._elements[start : start + count]

    def close(self) -> None:
        """Do nothing: no file is open."""


class _Buffer(Buffer):
    def __init__(self, size: int) -> None:
        self.size = size
        self.elements = memory.empty_on_host((size // tiles.ELEMENT_BYTES,), pin=False)


class _NoIO:
    """Replaces ``FileIO``."""

    def __init__(self, *_: Any) -> None:
        """Accept FileIO's arguments."""

    def exchange(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def close(self) -> None:
        """Do nothing: no thread is used."""


@contextmanager
def _moves(placement: MemoryPlacement) -> Iterator[None]:
    """Make ``tensor.to(device)`` and ``tensor.cpu()`` copy between device and host.

    Patched on the class, because no function mode is active in backward.
    """
    to_original, cpu_original = Tensor.to, Tensor.cpu

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Copy to the device if one is given; to the host if the copy is non-blocking.

        ``fully_shard`` moves gradients to the host with non-blocking copies.
        """
        named = [*args, *kwargs.values()]
        on_host = placement.is_off_device(tensor)
        is_move = any(isinstance(value, torch.device) for value in named)
        if is_move and (on_host or "non_blocking" in kwargs):
            dtype = next((value for value in named if isinstance(value, torch.dtype)), tensor.dtype)
            return placement.copied(to_original, tensor, dtype, to_host=not on_host)
        return to_original(tensor, *args, **kwargs)

    def cpu(tensor: Tensor) -> Tensor:
        if placement.is_off_device(tensor):
            return cpu_original(tensor)
        return placement.copied(to_original, tensor, tensor.dtype, to_host=True)

    patched: Any = Tensor
    patched.to, patched.cpu = to, cpu
    try:
        yield
    finally:
        del patched.to, patched.cpu  # the inherited methods apply again

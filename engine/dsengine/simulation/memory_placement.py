"""Main memory, files and device as three, in a dry run whose tensors are all of the CPU.

[Note: where a tensor is]
Autograd refuses tensors of a device that torch was not built for, fakes too. So every tensor is
one of the CPU, and what is in main memory is marked: the model as it was built, what the tiers
ask main memory for, and whatever an operation makes of marked tensors alone. To move a tensor
would do nothing here; it is a copy instead, which is marked or not. Files are tensors that are
marked as such; nothing is read or written, and what threads would do is done at once.
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
from dsengine.torch_private import local_part, replaced, storage_key

_Table = dict[int, "weakref.ref[Any]"]
"""Storages, by their keys."""


class MemoryPlacement:
    """Which storages are in main memory, and which in files."""

    def __init__(self) -> None:
        self._on_host: _Table = {}
        self._in_files: _Table = {}
        self._made_at: _Table | None = None
        """Where new storages are noted; None where their inputs are, if they all are below."""

    def is_on_host(self, storage: torch.UntypedStorage) -> bool:
        return _knows(self._on_host, storage)

    def is_in_file(self, storage: torch.UntypedStorage) -> bool:
        return _knows(self._in_files, storage)

    def is_on_device(self, storage: torch.UntypedStorage) -> bool:
        return not (self.is_on_host(storage) or self.is_in_file(storage))

    def put_on_host(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            _note(self._on_host, tensor)

    def in_file(self, elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a tensor that counts as a file."""
        with self._making(self._in_files):
            return torch.empty(elements, dtype=dtype)

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """Mark what the tiers make inside, and let moves be copies."""
        with ExitStack() as stack:
            for holder, name, other in (
                (memory, "empty_on_host", self._empty_on_host),
                (memory, "empty_on_device_of", self._empty_beside),
                (memory, "in_same_memory", lambda one, other: self.has(one) is self.has(other)),
                (staging, "ThreadPoolExecutor", AtOnce),
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

    def has(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is in main memory, or in a file, which is seen through that."""
        return not self.is_on_device(local_part(tensor).untyped_storage())

    def copied(self, move: Any, tensor: Tensor, dtype: torch.dtype, *, to_host: bool) -> Tensor:
        with self._making(self._on_host if to_host else {}):
            return move(tensor, dtype, copy=True)

    def mark(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Take note of where the storages are that an operation has made."""
        inputs, results = [*map(local_part, inputs)], [*map(local_part, results)]
        known = {storage_key(each) for each in inputs}
        table = self._made_at
        if table is None:
            table = self._on_host if inputs and all(map(self.has, inputs)) else {}
        for each in results:
            if storage_key(each) not in known:
                _note(table, each)

    def _empty_on_host(self, shape: Sequence[int], *, pin: bool) -> Tensor:
        del pin
        with self._making(self._on_host):
            return torch.empty(shape, dtype=torch.float32)

    def _empty_beside(self, part: Tensor, shape: Sequence[int], *, pin: bool) -> Tensor:
        del pin
        with self._making(self._on_host if self.has(part) else {}):
            return torch.empty(shape, dtype=torch.float32)

    @contextmanager
    def _making(self, table: _Table) -> Iterator[None]:
        before, self._made_at = self._made_at, table
        try:
            yield
        finally:
            self._made_at = before


def _knows(table: _Table, storage: torch.UntypedStorage) -> bool:
    reference = table.get(storage_key(storage))
    return reference is not None and reference() is storage


def _note(table: _Table, tensor: Tensor) -> None:
    storage = local_part(tensor).untyped_storage()
    key = storage_key(storage)

    def forget(gone: "weakref.ref[Any]") -> None:
        if table.get(key) is gone:
            del table[key]

    table[key] = weakref.ref(storage, forget)


class AtOnce:
    """An executor that does what it is given before it returns."""

    def __init__(self, *_: Any) -> None:
        """As ThreadPoolExecutor."""

    def submit(self, do: Callable[..., Any], *args: Any) -> "Future[Any]":
        done = Future[Any]()
        done.set_result(do(*args))
        return done

    def shutdown(self) -> None:
        """There is no thread."""


class _File:
    """In the place of ``UnnamedFile``."""

    def __init__(self, places: MemoryPlacement, path: Path, size: int) -> None:
        del path
        self._elements = places.in_file(size // tiles.ELEMENT_BYTES)

    def part(self, *_: Any) -> None:
        """There is nothing to be read or written."""

    @contextmanager
    def mapped(self) -> Iterator[View]:
        yield lambda start, count: self._elements[start : start + count]

    def close(self) -> None:
        """It has no descriptor."""


class _Buffer(Buffer):
    def __init__(self, size: int) -> None:
        self.size = size
        self.elements = memory.empty_on_host((size // tiles.ELEMENT_BYTES,), pin=False)


class _NoIO:
    """In the place of ``FileIO``."""

    def __init__(self, *_: Any) -> None:
        """Without threads."""

    def exchange(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def close(self) -> None:
        """There is no thread."""


@contextmanager
def _moves(places: MemoryPlacement) -> Iterator[None]:
    """Let ``tensor.to(device)`` and ``tensor.cpu()`` copy from one place to the other.

    Patched on the class: in backward there is no mode that functions would pass by.
    """
    move, bring = Tensor.to, Tensor.cpu

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Where a device is named it is that of units, or the host if the copy is not waited for.

        That is how ``fully_shard`` brings gradients to the host.
        """
        named = [*args, *kwargs.values()]
        on_host = places.has(tensor)
        is_move = any(isinstance(each, torch.device) for each in named)
        if is_move and (on_host or "non_blocking" in kwargs):
            dtype = next((each for each in named if isinstance(each, torch.dtype)), tensor.dtype)
            return places.copied(move, tensor, dtype, to_host=not on_host)
        return move(tensor, *args, **kwargs)

    def cpu(tensor: Tensor) -> Tensor:
        if places.has(tensor):
            return bring(tensor)
        return places.copied(move, tensor, tensor.dtype, to_host=True)

    patched: Any = Tensor
    patched.to, patched.cpu = to, cpu
    try:
        yield
    finally:
        del patched.to, patched.cpu  # what is inherited shows again

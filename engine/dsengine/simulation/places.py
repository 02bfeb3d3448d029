"""Main memory and device as two, in a dry run whose tensors are all of the CPU.

[Note: where a tensor is]
Autograd refuses tensors of a device that torch was not built for, fakes too. So every tensor is
one of the CPU, and what is in main memory is marked: the model as it was built, what the tiers
ask main memory for, and whatever an operation makes of marked tensors alone. To move a tensor
would do nothing here; it is a copy instead, which is marked or not.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dsengine.tiers import memory
from dsengine.torch_private import local_part, replaced, storage_key


class Places:
    """Which storages are in main memory."""

    def __init__(self) -> None:
        self._on_host: dict[int, weakref.ref[Any]] = {}
        self._made_at: bool | None = None
        """Where new storages are, True for main memory; None where their inputs are."""

    def is_on_host(self, storage: torch.UntypedStorage) -> bool:
        reference = self._on_host.get(storage_key(storage))
        return reference is not None and reference() is storage

    def put_on_host(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            storage = local_part(tensor).untyped_storage()
            key = storage_key(storage)
            self._on_host[key] = weakref.ref(storage, lambda gone, key=key: self._forget(key, gone))

    @contextmanager
    def told_apart(self) -> Iterator[None]:
        """Mark what is made inside, and let moves be copies."""
        with ExitStack() as stack:
            stack.enter_context(replaced(memory, "empty_on_host", self._empty_on_host))
            stack.enter_context(_moves(self))
            stack.enter_context(_Marks(self))
            yield

    def has(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` is in main memory."""
        return self.is_on_host(local_part(tensor).untyped_storage())

    def copied(self, move: Any, tensor: Tensor, dtype: torch.dtype, *, to_host: bool) -> Tensor:
        with self._making(on_host=to_host):
            return move(tensor, dtype, copy=True)

    def mark(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Take note of where the storages are that an operation has made."""
        known = {storage_key(each) for each in inputs}
        on_host = self._made_at
        if on_host is None:
            on_host = bool(inputs) and all(map(self.has, inputs))
        if on_host:
            self.put_on_host(each for each in results if storage_key(each) not in known)

    def _empty_on_host(self, shape: Sequence[int], *, pin: bool) -> Tensor:
        del pin
        with self._making(on_host=True):
            return torch.empty(shape, dtype=torch.float32)

    @contextmanager
    def _making(self, *, on_host: bool) -> Iterator[None]:
        before, self._made_at = self._made_at, on_host
        try:
            yield
        finally:
            self._made_at = before

    def _forget(self, key: int, gone: "weakref.ref[Any]") -> None:
        if self._on_host.get(key) is gone:
            del self._on_host[key]


class _Marks(TorchDispatchMode):
    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._places.mark(_plain((args, kwargs)), _plain(result))
        return result


def _plain(tree: Any) -> list[Tensor]:
    return [local_part(leaf) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextmanager
def _moves(places: Places) -> Iterator[None]:
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

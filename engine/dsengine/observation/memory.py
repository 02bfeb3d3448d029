"""Live tensor bytes of a rank by phase.

On CUDA the caching allocator reports them. On CPU a dispatch mode records every tensor an operator
returns and follows its storage until it is freed: exact for tensors, but not for buffers inside
operators. It adds microseconds to each operator, so it is active only in measured steps.
"""

import gc
import os
import resource
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dsengine.tiers.memory import GIBI, KIBI
from dsengine.torch_private.tensors import observe_resizes, storage_key


class LiveBytes:
    """Peak and final bytes of each phase between ``start`` and ``stop``.

    ``existing`` False excludes tensors from before ``start``. ``counts``: whether to count a
    storage (not on CUDA). ``watches`` False: the caller observes operators itself and calls
    ``see``.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        existing: bool = True,
        counts: Callable[[torch.UntypedStorage], bool] | None = None,
        watches: bool = True,
    ) -> None:
        self.device = device
        self.peaks: dict[str, int] = {}
        """Peak bytes of each phase; a phase entered again keeps its maximum."""
        self.at_exit: dict[str, int] = {}
        """Live bytes when each phase last ended."""
        self._phase: str | None = None
        self._existing = existing
        self._before = 0
        """Bytes to exclude, on CUDA."""
        self._tracker = None if device.type == "cuda" else _StorageTracker(device, counts)
        self._watching = ExitStack()
        self._watches = watches

    def start(self, phase: str, existing: Iterable[torch.Tensor] | None = None) -> None:
        """Start measuring.

        ``existing``: the current tensors, if the caller knows them; not on CUDA.
        """
        if self._tracker is not None:
            self._tracker.see(
                _existing_tensors() if existing is None else existing, counted=self._existing
            )
            self._watching.enter_context(observe_resizes(self._tracker.resized))
            if self._watches:
                self._watching.enter_context(_ObserveResults(self._tracker))
        elif not self._existing:
            self._before = torch.cuda.memory_allocated(self.device)
        self._begin(phase)

    def see(self, given: Iterable[torch.Tensor], made: Iterable[torch.Tensor]) -> None:
        """Record the tensors that an operator took and returned."""
        if self._tracker is not None and self._phase is not None:
            self._tracker.see(given, counted=self._existing)
            self._tracker.see(made)

    def enter(self, phase: str) -> None:
        """End the current phase, begin the next."""
        self._end()
        self._begin(phase)

    def stop(self) -> None:
        self._end()
        self._watching.close()

    @contextmanager
    def measure(
        self, phase: str, existing: Iterable[torch.Tensor] | None = None
    ) -> Iterator["LiveBytes"]:
        """Measure one phase; ``existing`` as in ``start``."""
        self.start(phase, existing)
        try:
            yield self
        finally:
            self.stop()

    def _begin(self, phase: str) -> None:
        self._phase = phase
        if self._tracker is not None:
            self._tracker.peak = self._tracker.live
        else:
            torch.cuda.reset_peak_memory_stats(self.device)

    def _end(self) -> None:
        if self._phase is None:
            return
        if self._tracker is not None:
            peak, live = self._tracker.peak, self._tracker.live
        else:
            peak = torch.cuda.max_memory_allocated(self.device) - self._before
            live = torch.cuda.memory_allocated(self.device) - self._before
        self.peaks[self._phase] = max(peak, self.peaks.get(self._phase, 0))
        self.at_exit[self._phase] = live
        self._phase = None


class _StorageTracker:
    """Counts each storage once, from the first tensor on it until it is freed.

    ``fully_shard`` frees and refills storages in place, so ``UntypedStorage.resize_`` is observed
    too.
    """

    def __init__(
        self, device: torch.device, counts: Callable[[torch.UntypedStorage], bool] | None
    ) -> None:
        self.device = device
        self._counts = counts
        self.live = 0
        self.peak = 0
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def see(self, tensors: Iterable[torch.Tensor], *, counted: bool = True) -> None:
        for tensor in tensors:
            for plain in _plain(tensor):
                if plain.device.type == self.device.type:
                    self._see(plain.untyped_storage(), counted=counted)

    def _see(self, storage: torch.UntypedStorage, *, counted: bool) -> None:
        key = storage_key(storage)
        if key in self._known and self._known[key][0]() is storage:
            return
        self._forget(key)
        if self._counts is not None and not self._counts(storage):
            return
        size = storage.nbytes() if counted else 0
        reference = weakref.ref(storage, lambda gone, key=key: self._freed(key, gone))
        self._known[key] = (reference, size)
        self._add(size)

    def _add(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self.live -= known[1]

    def _freed(self, key: int, gone: "weakref.ref[Any]") -> None:
        known = self._known.get(key)
        if known is not None and known[0] is gone:
            self._forget(key)

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        key = storage_key(storage)
        reference, counted = self._known.get(key, (None, 0))
        if reference is not None and reference() is storage and counted == before:
            self._known[key] = (reference, storage.nbytes())
            self._add(storage.nbytes() - before)


class _ObserveResults(TorchDispatchMode):
    """Reports the results of operators to a tracker."""

    def __init__(self, tracker: _StorageTracker) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._tracker.see(tensors_in(result))
        return result


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in an operator's arguments or results, also from lists and dicts."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in([*values.values()])


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors with storage in a wrapper such as DTensor, or the tensor itself."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = cast(Any, tensor).__tensor_flatten__()
        for name in names:
            inner = getattr(tensor, name)
            if isinstance(inner, torch.Tensor):
                yield from _plain(inner)
    elif tensor.layout is torch.strided and tensor.device.type != "meta":
        yield tensor


def _existing_tensors() -> list[torch.Tensor]:
    gc.collect()
    tensors: list[torch.Tensor] = []
    for candidate in gc.get_objects():
        try:
            # type(), because isinstance() would touch lazy deprecated objects.
            if issubclass(type(candidate), torch.Tensor):
                tensors.append(candidate)
                if candidate.is_leaf and candidate.grad is not None:
                    tensors.append(candidate.grad)
        except (ReferenceError, RuntimeError):
            continue  # a dead weak proxy, or a grad that cannot be accessed
    return tensors


def resident() -> int:
    """Return the resident bytes of this process; 0 if the system does not report them."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - called often
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def peak_resident() -> int:
    """Return the peak resident bytes of this process, which cannot be reset."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBI


def memory_line(phase: str, device: torch.device) -> str:
    """Return a line with allocated and peak GiB.

    On CUDA they are the allocator's, otherwise the peak resident memory of the process.
    """
    if device.type == "cuda":
        allocated, peak = (
            torch.cuda.memory_allocated(device),
            torch.cuda.max_memory_allocated(device),
        )
        return (
            f"memory after {phase}: {allocated / GIBI:.2f} GiB allocated, "
            f"peak {peak / GIBI:.2f} GiB"
        )
    return f"memory after {phase}: peak resident {peak_resident() / GIBI:.2f} GiB"

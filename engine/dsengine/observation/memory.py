"""What a rank really holds: live tensor bytes by phase, against the plan's estimate.

On CUDA the caching allocator is asked. On CPU there is no such counter, so a dispatch mode
sees every tensor that an operator returns and follows its storage until it dies: exact for
tensors, blind to buffers inside an operator. It costs some microseconds per operator, so it
is switched on for the steps that are measured only.
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
from dsengine.torch_private import observe_resizes, storage_key


class LiveBytes:
    """Peak and remaining bytes of each phase between ``start`` and ``stop``.

    ``existing`` False leaves out what was there before ``start``; ``counts``, not on CUDA, storages
    that it denies. ``watches`` False is for who watches operations too, and calls ``see``.
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
        """Highest bytes during each phase; a phase entered again keeps its maximum."""
        self.rests: dict[str, int] = {}
        """Bytes held when each phase was last left."""
        self._phase: str | None = None
        self._existing = existing
        self._before = 0
        """On CUDA, the bytes that are left out."""
        self._tracker = None if device.type == "cuda" else _StorageTracker(device, counts)
        self._watching = ExitStack()
        self._watches = watches

    def start(self, phase: str, existing: Iterable[torch.Tensor] | None = None) -> None:
        """Begin to measure. ``existing``: the tensors that there are, where the caller knows them;
        not on CUDA."""
        if self._tracker is not None:
            self._tracker.see(
                _existing_tensors() if existing is None else existing, counted=self._existing
            )
            self._watching.enter_context(observe_resizes(self._tracker.resized))
            if self._watches:
                self._watching.enter_context(_Watch(self._tracker))
        elif not self._existing:
            self._before = torch.cuda.memory_allocated(self.device)
        self._begin(phase)

    def see(self, given: Iterable[torch.Tensor], made: Iterable[torch.Tensor]) -> None:
        """Take note of what an operation has returned; what it was given was there before."""
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
    def measure(self, phase: str) -> Iterator["LiveBytes"]:
        self.start(phase)
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
        self.rests[self._phase] = live
        self._phase = None


class _StorageTracker:
    """Counts each storage once, from the first tensor seen on it to its death.

    FSDP empties and refills storages in place, so ``UntypedStorage.resize_`` is watched too.
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
        reference = weakref.ref(storage, lambda gone, key=key: self._died(key, gone))
        self._known[key] = (reference, size)
        self._add(size)

    def _add(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self.live -= known[1]

    def _died(self, key: int, gone: "weakref.ref[Any]") -> None:
        known = self._known.get(key)
        if known is not None and known[0] is gone:
            self._forget(key)

    def resized(self, storage: torch.UntypedStorage, before: int) -> None:
        key = storage_key(storage)
        reference, counted = self._known.get(key, (None, 0))
        if reference is not None and reference() is storage and counted == before:
            self._known[key] = (reference, storage.nbytes())
            self._add(storage.nbytes() - before)


class _Watch(TorchDispatchMode):
    """Shows a tracker what operations return."""

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
    """The tensors that an operation was given or returns; of containers it has only torch's own."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in([*values.values()])


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with storage inside a wrapper such as DTensor, or the tensor itself."""
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
    found: list[torch.Tensor] = []
    for candidate in gc.get_objects():
        try:
            # type(), because isinstance() would touch lazy deprecated objects.
            if issubclass(type(candidate), torch.Tensor):
                found.append(candidate)
                if candidate.is_leaf and candidate.grad is not None:
                    found.append(candidate.grad)
        except (ReferenceError, RuntimeError):
            continue  # a dead weak proxy, or a grad that may not be asked for
    return found


def resident() -> int:
    """Bytes of main memory that this process holds; 0 where the system does not print_rank0."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - one line of numbers, often asked
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def peak_resident() -> int:
    """The most bytes of main memory that this process has held; they cannot be reset."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBI


def memory_line(phase: str, device: torch.device) -> str:
    """Allocated and peak GiB: the allocator's on CUDA, else those of the process."""
    if device.type == "cuda":
        held, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        return f"memory after {phase}: {held / GIBI:.2f} GiB allocated, peak {peak / GIBI:.2f} GiB"
    return f"memory after {phase}: peak resident {peak_resident() / GIBI:.2f} GiB"

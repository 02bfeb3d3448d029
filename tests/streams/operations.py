"""Every operator as reads and writes of byte ranges by a stream or a thread.

[Note: where operations run]
All tensors are on the CPU; those in host memory are marked. An operator whose tensors are all in
host memory runs at once on the current thread. A copy between host and device runs on the current
stream, and the thread waits for it unless it is non-blocking from or to pinned memory. All others
run on the current stream.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from dsengine.torch_private.tensors import READ_OF_A_VALUE, storage_key
from streams.clocks import Schedule
from streams.memory import Memory

_WAITING = {"nonzero", "equal", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}
"""Operators whose result has a size or value that the host reads."""
_WITHOUT_DATA = {"_unsafe_view", "lift_fresh", "resize_", "set_", "record_stream"}
_LIKE = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "rand_like")
_SOURCES = ("/dsengine/", "/_fully_shard/")


class Operations(TorchDispatchMode):
    """Records the operators of all threads in ``memory``."""

    def __init__(self, schedule: Schedule, memory: Memory) -> None:
        super().__init__()
        self._schedule = schedule
        self._memory = memory
        self.collective: Callable[[str, Sequence[Any]], Any] | None = None
        """Runs functional collectives, given their names and arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented  # these run operators on the tensors they contain
        kwargs = kwargs or {}
        name = func._opname
        if func.namespace == "_c10d_functional" and self.collective is not None:
            result = self.collective(name, args)
            return func(*args, **kwargs) if result is NotImplemented else result
        reads, writes, viewed = _used(func, args, kwargs)
        result = func(*args, **kwargs)
        if name == "all_gather_copy_in":
            writes = [result[0]]
        if name not in _WITHOUT_DATA:
            non_blocking = bool(kwargs.get("non_blocking")) or (len(args) > 2 and args[2] is True)
            known = {storage_key(t) for t in (*reads, *writes, *viewed)}
            made = [t for t in _tensors(result) if storage_key(t) not in known]
            if reads or writes or made:
                self.record(name, reads, writes, made, non_blocking=non_blocking)
        if func is READ_OF_A_VALUE or name in _WAITING:
            self._wait_for_value(name, reads)
        return result

    def record(
        self,
        name: str,
        reads: Sequence[Tensor],
        writes: Sequence[Tensor],
        made: Sequence[Tensor] = (),
        *,
        non_blocking: bool = True,
    ) -> None:
        """Record an operation on the current stream, or thread if all is in host memory.

        ``made``: results that share no memory with its arguments.
        """
        memory, schedule = self._memory, self._schedule
        reads, writes = [*reads], [*writes]
        used = [*reads, *writes]
        on_host = [tensor for tensor in used if memory.is_on_host(tensor)]
        place = f"{name} at {source_line()}"
        is_copy = "copy_" in name or name == "_to_copy"
        runs_on_host = bool(used) and len(on_host) == len(used)
        if on_host and not runs_on_host and not is_copy and any(t.dim() for t in on_host):
            runs_on_host = True  # step counts and the like, made without an input
            for tensor in used:
                if not memory.is_on_host(tensor):
                    memory.put_on_host(tensor)
        if runs_on_host:
            timeline, number = schedule.host, schedule.host.tick()
        else:
            timeline, number = schedule.stream, schedule.launch(schedule.stream, place)
        for tensor in reads:
            memory.use(tensor, timeline, number, place, write=False)
        for tensor in writes:
            memory.use(tensor, timeline, number, place, write=True)
        for tensor in made:
            if runs_on_host:
                memory.put_on_host(tensor)
            else:
                memory.block_of(tensor, timeline, place)
            if "empty" not in name:
                memory.use(tensor, timeline, number, place, write=True)
        if on_host and not runs_on_host and is_copy:
            is_pinned = all(memory.block_of(tensor, None).is_pinned for tensor in on_host)
            if not (non_blocking and is_pinned):
                schedule.wait(timeline.clock, f"blocking {place}")

    def _wait_for_value(self, name: str, tensors: Sequence[Tensor]) -> None:
        if not all(self._memory.is_on_host(tensor) for tensor in tensors):
            reason = "read of a value" if name == "_local_scalar_dense" else name
            self._schedule.wait(self._schedule.stream.clock, f"{reason} at {source_line()}")


def _used(
    func: Any, args: Sequence[Any], kwargs: Any
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return the tensors whose data an operator reads, those it writes, and the others."""
    reads: list[Tensor] = []
    writes: list[Tensor] = []
    others: list[Tensor] = []
    for index, (name, access) in enumerate(_accesses(func)):
        value = args[index] if index < len(args) else kwargs.get(name)
        if value is not None:
            target = others if access is None else writes if access else reads
            target.extend(_tensors(value))
    return reads, writes, others


@cache
def _accesses(func: Any) -> list[tuple[str, bool | None]]:
    """Return name and access of each argument: written (True), read (False), or a view (None)."""
    without_data = "empty" in func._opname or func._opname in _LIKE
    return [
        (
            argument.name,
            (True if argument.alias_info.is_write else None)
            if argument.alias_info is not None
            else (None if without_data else False),
        )
        for argument in func._schema.arguments
    ]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not value.is_meta:
            yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def source_line() -> str:
    """Return file, line and function of the engine or of fully_shard that runs now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if any(source in path for source in _SOURCES) and "/tests/" not in path:
            file = "/".join(path.split("/")[-2:])
            return f"{file}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return "the script"

"""A simulated GPU on which the engine runs in one process; its races and waits are recorded.

[Note: what is simulated]
``fully_shard`` uses ``torch.cpu`` for streams and events, because the mesh is on the CPU: these get
clocks. What the engine asks of CUDA (``communication/devices.py``) is replaced alike, its threads
and queues run in a fixed order, and the process group stands for any number of ranks with equal
data. Tensors have real values on the CPU; the tables of ``memory`` say which are on the device.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsengine.checkpoints import checkpointer
from dsengine.communication import devices
from dsengine.loop import initialization
from dsengine.tiers import accumulation, files, memory, staging
from dsengine.torch_private.tensors import local_part, observe_resizes, replaced
from streams.clocks import Clock, Schedule, Timeline
from streams.group import BACKEND, EqualRanks, FunctionalCollectives
from streams.memory import Memory, Race
from streams.operations import Operations, source_line
from streams.threads import Queue, ThreadLocal, Threads

IMPORTED = (checkpointer, initialization)
"""The engine must be imported before its functions are replaced."""


class Machine:
    """The device, its memory and the threads of one rank."""

    def __init__(self) -> None:
        self.schedule = Schedule()
        self.memory = Memory(self.schedule)
        self.operations = Operations(self.schedule, self.memory)
        self.operations.collective = FunctionalCollectives()

    @property
    def races(self) -> list[Race]:
        return sorted(self.memory.races)

    @property
    def waits(self) -> list[str]:
        return self.schedule.waits

    def recorded_event(self, device: torch.device | None = None) -> "Event":
        del device
        event = Event(self.schedule)
        event.record()
        return event

    def wait_for_stream(self, device: torch.device) -> None:
        del device
        self.schedule.stream.join(self.schedule.host.clock)
        self.schedule.wait(self.schedule.stream.clock, f"wait_for_stream at {source_line()}")

    def wait_for_device(self, device: torch.device) -> None:
        del device
        clock: Clock = {}
        for stream in self.schedule.streams:
            stream.join(self.schedule.host.clock)
            clock |= {t: max(n, clock.get(t, 0)) for t, n in stream.clock.items()}
        self.schedule.wait(clock, f"wait_for_device at {source_line()}")

    def empty_on_host(self, empty: Any, shape: Any, *, pin: bool, **dtype: Any) -> Tensor:
        tensor = empty(shape, pin=False, **dtype)
        self.memory.put_on_host(tensor, pin=pin)
        return tensor

    def empty_beside(self, part: Tensor, shape: Any, *, pin: bool, dtype: torch.dtype) -> Tensor:
        if self.memory.is_on_host(local_part(part)):
            return memory.empty_on_host(shape, pin=pin, dtype=dtype)
        return torch.empty(shape, dtype=dtype)

    def in_same_memory(self, one: Tensor, other: Tensor) -> bool:
        on_host = self.memory.is_on_host
        return on_host(local_part(one)) is on_host(local_part(other))

    def threads_on_device(self, count: int, name: str) -> Threads:
        """Return threads that set their device, as those of the real function do."""
        threads = Threads(self.schedule, count, name)
        self.schedule.on_device.update(threads.timelines)
        return threads

    def host_tensor(self, make: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Return a tensor from Python values or mapped memory; a device waits for its copy."""
        tensor = make(*args, **kwargs)
        if kwargs.get("device") is None:
            self.memory.put_on_host(tensor)
        else:
            self.schedule.wait({}, f"blocking {make.__name__} at {source_line()}")
        return tensor

    def move(self, tensor: Tensor, dtype: torch.dtype, *, to_host: bool, wait: bool) -> Tensor:
        """Return a copy in the other memory."""
        result = torch.empty_like(tensor, dtype=dtype)
        if to_host:
            self.memory.put_on_host(result, pin=not wait)
        return result.copy_(tensor, non_blocking=not wait)

    def exchange(
        self, real: Any, io: Any, buffer: Any, *, write: Any = None, read: Any = None
    ) -> Any:
        """Transfer as ``FileIO.exchange``; one thread uses the buffer's bytes."""

        def transfer() -> None:
            for future in real(io, buffer, write=write, read=read):
                future.result()
            for is_read, extent in ((False, write), (True, read)):
                if extent is not None:
                    used = buffer.elements[: extent.size * len(extent.starts) // 4]
                    name = "read from a file" if is_read else "write to a file"
                    if not self.memory.is_on_host(buffer.elements):
                        self.memory.put_on_host(buffer.elements)
                    touched = ([], [used]) if is_read else ([used], [])
                    self.operations.record(name, *touched)

        return [Threads(self.schedule, 1, "file thread").submit(transfer)]


class Stream(Timeline):
    """``torch.cpu.Stream`` with a clock."""

    def __init__(self, schedule: Schedule, name: str = "") -> None:
        super().__init__(name or f"stream {len(schedule.streams)}")
        self._schedule = schedule
        schedule.streams.append(self)

    def wait_stream(self, stream: Timeline) -> None:
        stream.join(self._schedule.host.clock)
        self.join(stream.clock)

    def wait_event(self, event: "Event | None") -> None:
        if event is not None:
            self.join(self._schedule.host.clock)
            self.join(event.clock)

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event(self._schedule)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.join(self._schedule.host.clock)
        self._schedule.wait(self.clock, f"stream.synchronize at {source_line()}")


class Event:
    """``torch.cpu.Event`` with a clock."""

    def __init__(self, schedule: Schedule, **_: Any) -> None:
        self._schedule = schedule
        self.clock: Clock = {}

    def record(self, stream: Timeline | None = None) -> None:
        stream = stream or self._schedule.stream
        stream.join(self._schedule.host.clock)
        self.clock = dict(stream.clock)

    def wait(self, stream: Timeline | None = None) -> None:
        stream = stream or self._schedule.stream
        stream.join(self.clock)

    def synchronize(self) -> None:
        self._schedule.wait(self.clock, f"event.synchronize at {source_line()}")

    def query(self) -> bool:
        return True


@contextmanager
def simulated(ranks: int = 4) -> Iterator[Machine]:
    """Run the engine inside on a simulated GPU, as the first of ``ranks``."""
    machine = Machine()
    schedule = machine.schedule
    schedule.streams.clear()
    schedule.default = schedule.stream = Stream(schedule, "default stream")
    with ExitStack() as stack:
        for name, value in {
            "Stream": lambda **_: Stream(schedule),
            "Event": partial(Event, schedule),
            "current_stream": lambda *_: schedule.stream,
            "stream": schedule.on_stream,
            "synchronize": lambda *_: machine.wait_for_device(torch.device("cpu")),
        }.items():
            stack.enter_context(replaced(torch.cpu, name, value))
        stack.enter_context(
            replaced(torch.accelerator, "current_stream", lambda *_: schedule.stream)
        )
        for original, substitute in (
            (devices.recorded_event, machine.recorded_event),
            (devices.can_coalesce, lambda *_: True),
            (devices.wait_for_stream, machine.wait_for_stream),
            (devices.wait_for_device, machine.wait_for_device),
            (devices.threads_on_device, machine.threads_on_device),
            (memory.is_on_host, lambda tensor: machine.memory.is_on_host(local_part(tensor))),
            (memory.in_same_memory, machine.in_same_memory),
            (memory.empty_on_device_of, machine.empty_beside),
            (memory.empty_on_host, partial(machine.empty_on_host, memory.empty_on_host)),
            (memory.can_pin, lambda: True),
            (ThreadPoolExecutor, partial(Threads, schedule)),
        ):
            stack.enter_context(_replaced_everywhere(original, substitute))
        stack.enter_context(replaced(staging, "SimpleQueue", partial(Queue, schedule)))
        stack.enter_context(replaced(accumulation, "_buffers", ThreadLocal(schedule)))
        for name in ("tensor", "frombuffer", "from_file", "from_numpy"):
            make = partial(machine.host_tensor, getattr(torch, name))
            stack.enter_context(replaced(torch, name, make))
        exchange = files.FileIO.exchange
        stack.enter_context(
            replaced(
                files.FileIO,
                "exchange",
                lambda io, buffer, **how: machine.exchange(exchange, io, buffer, **how),
            )
        )
        stack.enter_context(_tensor_methods(machine))
        stack.enter_context(_world(machine, ranks))
        stack.enter_context(observe_resizes(machine.memory.resized))
        stack.enter_context(machine.operations)
        yield machine


def host_model(machine: Machine, model: nn.Module) -> nn.Module:
    """Return ``model``, whose tensors are in host memory as those of a script are."""
    for tensor in (*model.parameters(), *model.buffers()):
        machine.memory.put_on_host(tensor)
    return model


@contextmanager
def _replaced_everywhere(original: Any, substitute: Any) -> Iterator[None]:
    """Replace a function in each module of the engine that has imported it."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "dsengine":
                for attribute, value in list(vars(module).items()):
                    if value is original:
                        stack.enter_context(replaced(module, attribute, substitute))
        yield


@contextmanager
def _tensor_methods(machine: Machine) -> Iterator[None]:
    """Make moves between device and host copies, and pin what is marked as pinned."""
    on_host = machine.memory.is_on_host
    to_original, cpu_original = Tensor.to, Tensor.cpu

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        named = [*args, *(v for k, v in kwargs.items() if k != "non_blocking")]
        is_on_host = on_host(local_part(tensor))
        is_move = any(isinstance(value, torch.device) for value in named)
        is_move &= is_on_host or "non_blocking" in kwargs
        if type(tensor) in (Tensor, nn.Parameter) and is_move:
            dtype = next((v for v in named if isinstance(v, torch.dtype)), tensor.dtype)
            wait = not kwargs.get("non_blocking")
            return machine.move(tensor, dtype, to_host=not is_on_host, wait=wait)
        return to_original(tensor, *args, **kwargs)

    def cpu(tensor: Tensor) -> Tensor:
        if on_host(local_part(tensor)):
            return cpu_original(tensor)
        return machine.move(tensor, tensor.dtype, to_host=True, wait=True)

    def is_pinned(tensor: Tensor, *_: Any) -> bool:
        local = local_part(tensor)
        return on_host(local) and machine.memory.block_of(local, None).is_pinned

    def pin_memory(tensor: Tensor, *_: Any) -> Tensor:
        result = torch.empty_like(tensor)
        machine.memory.put_on_host(result, pin=True)
        return result.copy_(tensor)

    def tolist(original: Callable[[Tensor], Any], tensor: Tensor) -> Any:
        if not on_host(local_part(tensor)):
            clock = machine.schedule.stream.clock
            machine.schedule.wait(clock, f"tolist at {source_line()}")
        return original(tensor)

    original_list = Tensor.tolist
    methods = {
        "to": to,
        "cpu": cpu,
        "is_pinned": is_pinned,
        "pin_memory": pin_memory,
        "tolist": lambda tensor: tolist(original_list, tensor),
    }
    with ExitStack() as stack:
        for name, method in methods.items():
            stack.enter_context(patch.object(Tensor, name, method))
        yield


@contextmanager
def _world(machine: Machine, ranks: int) -> Iterator[None]:
    """Create the default process group, whose other ranks have this one's data."""

    def create(store: Any, rank: int, size: int, timeout: Any) -> EqualRanks:
        del store, timeout
        return EqualRanks(machine.operations, machine.schedule, rank, size)

    if BACKEND.upper() not in vars(dist.Backend):
        dist.Backend.register_backend(BACKEND, _create, devices=["cpu"])
    _creators.append(create)
    new_group = dist.new_group

    def of_this_backend(*args: Any, **kwargs: Any) -> Any:
        group: Any = new_group(*args, **{**kwargs, "backend": None})
        assert group.group_name  # torch asks for it again when it is no longer registered
        return group

    try:
        dist.init_process_group(BACKEND, rank=0, world_size=ranks, store=_store())
        with (
            replaced(dist, "new_group", of_this_backend),
            replaced(dist, "all_gather_object", _gather_object),
        ):
            yield
    finally:
        dist.destroy_process_group()
        _creators.pop()


def _store() -> Any:
    return dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]


def _gather_object(values: list[Any], own: Any, group: Any = None) -> None:
    """Gather objects on the host, as over gloo."""
    del group
    values[:] = [own] * len(values)


_creators: list[Callable[..., EqualRanks]] = []


def _create(*arguments: Any) -> EqualRanks:
    return _creators[-1](*arguments)

"""A process group in one process: all other ranks have this one's data."""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Work

from streams.clocks import Clock, Schedule
from streams.operations import Operations

BACKEND = "streams"


class _Collective(Work):
    """A collective that has been launched; ``tensors`` stay in use until it is waited for."""

    def __init__(self, schedule: Schedule, done: Clock, tensors: list[Tensor], result: Any) -> None:
        super().__init__()
        self._schedule, self._done = schedule, done
        self._tensors: list[Tensor] = tensors
        self._result = result

    def wait(self, timeout: Any = None) -> bool:
        """Make the current stream, not the host, wait."""
        del timeout
        self._schedule.stream.join(self._schedule.host.clock)
        self._schedule.stream.join(self._done)
        self._tensors = []
        return True

    def get_future(self) -> Any:
        """Return a completed future; DistributedDataParallel waits for it in C++, unseen here."""
        self.wait()
        future = torch.futures.Future[Any]()
        future.set_result(self._result)
        return future


_Base: Any = dist.ProcessGroup  # its stubs differ from what torch calls


class EqualRanks(_Base):
    """Collectives as on NCCL: on the current stream, or if asynchronous on the group's own.

    ``issued`` counts them; the host never waits.
    """

    def __init__(self, operations: Operations, schedule: Schedule, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._operations, self._schedule = operations, schedule
        self._rank, self._size = rank, size
        self._stream = schedule.new_stream(f"group of {size}")
        self._name = ""
        self.issued = 0

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def getBackendName(self) -> str:
        return BACKEND

    @property
    def group_name(self) -> str:
        """The name under which torch has registered the group, also once it is destroyed."""
        self._name = dist.distributed_c10d._world.pg_names.get(self, self._name)
        return self._name

    pg_name = group_name

    def launch(
        self, name: str, reads: list[Tensor], writes: list[Tensor], options: Any, result: Any = None
    ) -> Work:
        self.issued += 1
        schedule, stream = self._schedule, self._schedule.stream
        if options is not None and getattr(options, "asyncOp", False):
            stream.join(schedule.host.clock)
            self._stream.join(stream.clock)
            stream = self._stream
        with schedule.on_stream(stream):
            self._operations.record(name, reads, writes)
        return _Collective(schedule, dict(stream.clock), [*reads, *writes], result)

    def _allgather_base(self, output: Tensor, own: Tensor, opts: Any = None) -> Work:
        self._fill(output, own)
        return self.launch("all_gather", [own], [output], opts, output)

    all_gather_single = _allgather_base

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """Gather all in one launch; asynchronous by default, as in torch."""
        for output, own in zip(outputs, inputs, strict=True):
            self._fill(output, own)
        return self.launch("all_gather", inputs, outputs, opts or _Options(), outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        with torch.no_grad():
            for output, own in zip(outputs, inputs, strict=True):
                for part in output:
                    part.copy_(own)
        return self.launch("all_gather", inputs, [t for o in outputs for t in o], opts, outputs)

    def _reduce_scatter_base(self, output: Tensor, full: Tensor, opts: Any = None) -> Work:
        with torch.no_grad():
            output.copy_(full.view(-1).chunk(self._size)[self._rank].view_as(output))
            self._scale(output, opts)
        return self.launch("reduce_scatter", [full], [output], opts, output)

    reduce_scatter_single = _reduce_scatter_base

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        with torch.no_grad():
            for tensor in tensors:
                self._scale(tensor, opts)
        return self.launch("all_reduce", tensors, tensors, opts, tensors)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Work:
        return self.launch("broadcast", tensors, tensors, opts, tensors)

    def barrier(self, opts: Any = None) -> Work:
        return self.launch("barrier", [], [], opts)

    @torch.no_grad()
    def _fill(self, output: Tensor, own: Tensor) -> None:
        for part in output.detach().view(-1).chunk(self._size):
            if part.data_ptr() != own.data_ptr():
                torch.Tensor.copy_(part, own.detach().view(-1))

    def _scale(self, tensor: Tensor, opts: Any) -> None:
        if opts is None or opts.reduceOp == dist.ReduceOp.SUM:
            tensor.mul_(self._size)


class _Options:
    asyncOp = True


class FunctionalCollectives:
    """Collectives that return a new tensor, which is complete once it is waited for."""

    def __init__(self) -> None:
        self._pending: dict[int, Work] = {}

    def __call__(self, name: str, arguments: Sequence[Any]) -> Any:
        """Return the result; NotImplemented for other operators."""
        own = arguments[0]
        if name == "wait_tensor":
            work = self._pending.pop(own.data_ptr(), None)
            if work is not None:
                work.wait()
            return own
        if name not in ("all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor"):
            return NotImplemented
        group: Any = cast(Any, dist.distributed_c10d)._resolve_process_group(arguments[-1])
        if name == "all_gather_into_tensor":
            result = torch.cat([own] * group.size())
        elif name == "all_reduce":
            result = own * group.size() if arguments[1] == "sum" else own.clone()
        else:
            result = own.chunk(group.size())[group.rank()].clone()
        self._pending[result.data_ptr()] = group.launch(name, [own], [result], _Options())
        return result

"""Collectives over gloo as on NCCL: the host issues and counts them, and runs ahead.

The host waits only where it reads a result: in ``item()`` and ``barrier()``. There it waits for all
collectives that it has issued, for ever if another rank does not take part, until the communicators
are aborted. Until then results are those of ranks with equal data. DistributedDataParallel issues
its own in C++, which wait as before.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from dsengine.communication.peers import abort

GATHERS = ("_allgather_base", "all_gather_single")
COALESCED_GATHERS = ("allgather_into_tensor_coalesced", "all_gather_single_coalesced")
SCATTERS = ("_reduce_scatter_base", "reduce_scatter_single")


class Issued(dist.Work):
    """A collective that the host does not wait for."""

    def wait(self, timeout: Any = None) -> bool:
        del timeout
        return True


class HostAhead:
    """The collectives of this rank: how many were issued in each group, and which are in flight."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By the name of the group, collectives since the beginning."""
        self.is_aborted = threading.Event()
        self._in_flight: list[Any] = []

    def issue(self, original: Any, equal_data: Any) -> Any:
        """Return a method of a group that issues ``original`` with copies of its tensors.

        ``equal_data``: writes the result of ranks with equal data.
        """

        def method(group: Any, *arguments: Any) -> Issued:
            copies = tree_map_only(Tensor, torch.clone, arguments)
            self.counts[group.group_name] += 1
            self._in_flight.append((original(group, *copies), copies))
            with torch.no_grad():
                equal_data(group, *arguments)
            return Issued()

        return method

    def wait(self) -> None:
        """Wait for all collectives in flight, until they are complete or aborted."""
        while self._in_flight and not self.is_aborted.is_set():
            self._in_flight = [each for each in self._in_flight if not _is_complete(each[0])]
            time.sleep(0.002)


def _is_complete(work: Any) -> bool:
    """Whether a collective is complete; NCCL never completes one after a rank was lost."""
    future = work.get_future()
    if future.done():
        with suppress(RuntimeError):
            future.value()
            return True
    return False


@contextmanager
def host_runs_ahead() -> Iterator[HostAhead]:
    """Do not wait for the collectives that are issued inside."""
    ahead = HostAhead()
    group, tensor = dist.ProcessGroup, torch.Tensor
    results: dict[str, Any] = {
        **dict.fromkeys(GATHERS, _gathered),
        **dict.fromkeys(COALESCED_GATHERS, _gathered_each),
        **dict.fromkeys(SCATTERS, _scattered),
        "allreduce": _summed,
        "broadcast": lambda *_: None,
    }
    barrier, item = dist.barrier, tensor.item

    def waiting_barrier(*arguments: Any, **options: Any) -> Any:
        ahead.wait()
        return barrier(*arguments, **options)

    def waiting_item(value: Tensor) -> Any:
        ahead.wait()
        return item(value)

    on_accelerator = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    with ExitStack() as stack:
        for name, result in results.items():
            if (original := getattr(group, name, None)) is None:  # renamed in 2.13
                continue
            if name in SCATTERS:  # over gloo complete only once they are waited for
                original = partial(_start_sum_of_input, group.allreduce)
            stack.enter_context(patch.object(group, name, ahead.issue(original, result)))
        stack.enter_context(patch.object(dist, "barrier", waiting_barrier))
        stack.enter_context(patch.object(tensor, "item", waiting_item))
        stack.enter_context(patch.object(abort, "torch", on_accelerator))
        stack.enter_context(patch.object(abort, "abort_communicators", ahead.is_aborted.set))
        yield ahead


def _start_sum_of_input(all_reduce: Any, group: Any, output: Tensor, full: Tensor, *_: Any) -> Any:
    del output
    return all_reduce(group, [full], dist.AllreduceOptions())


def _gathered(group: Any, output: Tensor, own: Tensor, *_: Any) -> None:
    for part in output.view(-1).chunk(group.size()):
        if part.data_ptr() != own.data_ptr():
            part.copy_(own.view(-1))


def _gathered_each(group: Any, outputs: list[Tensor], inputs: list[Tensor], *_: Any) -> None:
    for output, own in zip(outputs, inputs, strict=True):
        _gathered(group, output, own)


def _scattered(group: Any, output: Tensor, full: Tensor, *options: Any) -> None:
    output.copy_(full.view(-1).chunk(group.size())[group.rank()].view_as(output))
    _summed(group, [output], *options)


def _summed(group: Any, tensors: list[Tensor], *options: Any) -> None:
    if not options or options[0].reduceOp == dist.ReduceOp.SUM:
        for tensor in tensors:
            tensor.mul_(group.size())

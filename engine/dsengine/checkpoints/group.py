"""Errors of checkpoints, and agreement between ranks: an error on one is raised on all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TypeVar

import torch.distributed as dist

from dsengine import topology
from dsengine.communication.peers import failure_reason


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read. Raised on every rank."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint belongs to another model: the message names the keys that differ."""


T = TypeVar("T")


class CheckpointGroup:
    """The ranks that save and load together, on a process group of their own.

    Checkpoint traffic is a few pickled objects. It must not wait for, or interleave with, the
    collectives of a concurrent training step, and must not need the accelerator: hence a separate
    gloo group.
    """

    def __init__(self, *, alone: bool = False, saves: bool = True) -> None:
        """``alone``: only this process, even if there are other ranks. ``saves``: a lost rank is a
        CheckpointError, otherwise the communication's own error."""
        self._saves = saves
        self.distributed = not alone and dist.is_available() and dist.is_initialized()
        self.process_group = topology.new_host_group() if self.distributed else None
        self.rank = topology.rank() if self.distributed else 0
        self.world_size = topology.world_size() if self.distributed else 1

    @property
    def is_coordinator(self) -> bool:
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, in rank order."""
        if not self.distributed:
            return [value]
        values: list[T] = [value] * self.world_size
        with _lost_peer() if self._saves else nullcontext():
            dist.all_gather_object(values, value, group=self.process_group)
        return values

    def run(self, action: Callable[[], T], description: str) -> T:
        """Run ``action`` on every rank; raise on all ranks if it failed on any."""
        result, failure = _attempt(action)
        failures = self.gather(failure)
        _raise_first(failures, description)
        return result  # type: ignore[return-value]

    def run_on_coordinator(self, action: Callable[[], T], description: str) -> T:
        """Run ``action`` on rank 0 and return its (small) result on every rank.

        Uses a gather, not a broadcast: a rank that only sends may never notice that its peer has
        died.
        """
        outcome = self.gather(_attempt(action) if self.is_coordinator else (None, None))[0]
        _raise_first([outcome[1]], description)
        return outcome[0]  # type: ignore[return-value]

    def close(self) -> None:
        if self.process_group is not None and dist.is_initialized():
            # The default group may already be gone when the interpreter shuts down.
            with suppress(RuntimeError, ValueError):
                dist.destroy_process_group(self.process_group)
        self.process_group = None


@contextmanager
def _lost_peer() -> Iterator[None]:
    """Raise CheckpointError with the cause when gloo fails because another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        first_line = str(error).splitlines()[0]
        reason = failure_reason() or f"another rank stopped or is unreachable: {first_line}"
        raise CheckpointError(reason) from error


def _attempt(action: Callable[[], T]) -> tuple[T | None, CheckpointError | None]:
    """Run ``action``; convert any error to a CheckpointError."""
    try:
        return action(), None
    except CheckpointError as error:
        return None, error
    except Exception as error:  # all errors must reach the other ranks, or they hang
        return None, CheckpointError(f"{type(error).__name__}: {error}")


def _raise_first(failures: list[CheckpointError | None], description: str) -> None:
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise type(failure)(f"{description} failed on rank {rank}: {failure}")

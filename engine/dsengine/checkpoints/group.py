"""Agreement between ranks: a failure on one becomes the same error on all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch.distributed as dist

from dsengine.checkpoints.errors import CheckpointError
from dsengine.communication.peers import failure_reason

T = TypeVar("T")


class CheckpointGroup:
    """The ranks that save and load together, on a process group of their own.

    Checkpoint traffic is a few pickled objects. It must neither wait behind, nor be mixed up
    with, the collectives of a training step that runs at the same time, and it must not need
    the accelerator: hence a gloo group used by nobody else.
    """

    def __init__(self, *, alone: bool = False) -> None:
        """``alone``: this process by itself, whatever others there are."""
        self.distributed = not alone and dist.is_available() and dist.is_initialized()
        self.process_group = _own_group() if self.distributed else None
        self.rank = dist.get_rank() if self.distributed else 0
        self.world_size = dist.get_world_size() if self.distributed else 1

    @property
    def is_coordinator(self) -> bool:
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, in order of rank, on every rank."""
        if not self.distributed:
            return [value]
        values: list[T] = [value] * self.world_size
        with _lost_peer():
            dist.all_gather_object(values, value, group=self.process_group)
        return values

    def run(self, action: Callable[[], T], what: str) -> T:
        """Run ``action`` here; raise on all ranks when it failed on any of them."""
        result, failure = _attempt(action)
        failures = self.gather(failure)
        _raise_first(failures, what)
        return result  # type: ignore[return-value]

    def run_on_coordinator(self, action: Callable[[], T], what: str) -> T:
        """Run ``action`` on rank 0 and hand its (small) result to every rank.

        By a gather, not a broadcast: a rank that only sends may never learn that the other end
        has died, one that also receives does.
        """
        outcome = self.gather(_attempt(action) if self.is_coordinator else (None, None))[0]
        _raise_first([outcome[1]], what)
        return outcome[0]  # type: ignore[return-value]

    def close(self) -> None:
        if self.process_group is not None and dist.is_initialized():
            # The default group may already be gone when the interpreter shuts down.
            with suppress(RuntimeError, ValueError):
                dist.destroy_process_group(self.process_group)
        self.process_group = None


@contextmanager
def _lost_peer() -> Iterator[None]:
    """Say what it means when gloo fails: some other rank is gone."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        reason = failure_reason() or f"another rank stopped or cannot be reached: {said}"
        raise CheckpointError(reason) from error


def _own_group() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo")
    if not isinstance(group, dist.ProcessGroup):  # torch's type allows an int: not a member
        raise CheckpointError("this rank is not part of the default process group")
    return group


def _attempt(action: Callable[[], T]) -> tuple[T | None, CheckpointError | None]:
    """Run; turn what a disk, a file or a tensor can do wrong into a CheckpointError."""
    try:
        return action(), None
    except CheckpointError as error:
        return None, error
    except Exception as error:  # any failure here must reach the other ranks, or they hang
        return None, CheckpointError(f"{type(error).__name__}: {error}")


def _raise_first(failures: list[CheckpointError | None], what: str) -> None:
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise type(failure)(f"{what} failed on rank {rank}: {failure}")

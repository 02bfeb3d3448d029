"""Batches of ranks that do not have equally many.

[Note: join]
Every pass over a divided model is one of all ranks. So before each batch the ranks tell each other
who has one. A rank that has run out goes through its last batch again, for the others' sake: its
loss weighs nothing, and theirs so much more that a gradient is the mean over the ranks that have
data (``Engine.share``).
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from dsengine.communication.peers import in_phase

T = TypeVar("T")
Until = Literal["last", "first"]

_NONE: Any = object()


class Join:
    """The ranks' knowledge of who has a batch. Construction is collective."""

    def __init__(self, counters: Any) -> None:
        self.counters = counters
        """Those of the engine: what a rank that waits here is told to do."""
        self._ranks = dist.get_world_size()
        self._group: Any = dist.new_group(backend="gloo") if self._ranks > 1 else None

    @in_phase("join")
    def ask(self, has_batch: bool, has_had_one: bool) -> int:
        """Return how many ranks have a batch. Collective.

        Raises ValueError on all ranks when one has never had a batch and others have.
        """
        answer = torch.tensor([has_batch, has_batch or has_had_one], dtype=torch.int64)
        if self._group is not None:
            dist.all_reduce(answer, group=self._group)
        with_batch, with_any = answer.tolist()
        if with_batch and with_any < self._ranks:
            raise ValueError(
                f"{self._ranks - with_any} of {self._ranks} ranks have no batch at all: join() "
                "needs one of each, to go through it with the others"
            )
        return with_batch

    def close(self) -> None:
        if self._group is not None:
            dist.destroy_process_group(self._group)


def joined(engine: Any, batches: Iterable[T], until: Until) -> Iterator[T]:
    """What ``Engine.join`` does."""
    ranks = dist.get_world_size()
    join = Join(engine.counters)
    own, batch = iter(batches), _NONE
    try:
        while True:
            upcoming = next(own, _NONE)
            with_batch = join.ask(upcoming is not _NONE, batch is not _NONE)
            if with_batch == 0 or (until == "first" and with_batch < ranks):
                return
            engine.share = ranks / with_batch if upcoming is not _NONE else 0.0
            batch = batch if upcoming is _NONE else upcoming
            yield batch
    finally:
        engine.share = 1.0
        join.close()

"""Accumulation windows of an engine: boundaries, when gradients are reduced, uneven data.

[Note: join]
Every forward and backward of a sharded model is collective, so before each batch the ranks exchange
who has one. A rank without data repeats its last batch with loss weight 0; the other ranks' losses
are weighted up so that a gradient is the mean over the ranks with data (``Windows.loss_weight``).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from dsengine.communication.peers import in_phase
from dsengine.loop.counters import Accumulation, Counters
from dsengine.loop.misuse import MisuseError
from dsengine.sharding import Gradients
from dsengine.topology import Topology

Until = Literal["last", "first"]


class Join:
    """Counts the ranks that have a batch. Construction is collective."""

    def __init__(self, counters: Any, topology: Topology) -> None:
        self.counters = counters
        """The engine's, reported for a rank that waits here."""
        self._ranks = topology.size("samples")
        self._group = topology.new_host_group("samples") if self._ranks > 1 else None

    @in_phase("join")
    def count(self, has_batch: bool, has_had_one: bool) -> int:
        """Return the number of ranks that have a batch. Collective.

        Raises ValueError on all ranks if one has never had a batch while others have.
        """
        counts = torch.tensor([has_batch, has_batch or has_had_one], dtype=torch.int64)
        if self._group is not None:
            dist.all_reduce(counts, group=self._group)
        with_batch, with_any = counts.tolist()
        if with_batch and with_any < self._ranks:
            raise ValueError(
                f"{self._ranks - with_any} of {self._ranks} ranks have no batch: join() "
                "needs at least one batch on every rank"
            )
        return with_batch

    def close(self) -> None:
        if self._group is not None:
            dist.destroy_process_group(self._group)


T = TypeVar("T")

_NONE: Any = object()


@dataclass(eq=False)
class Windows:
    """Lets a script set boundaries, postpone reductions and join uneven data."""

    accumulation: Accumulation
    counters: Counters
    gradients: Gradients
    topology: Topology
    stage: int
    loss_weight: float = 1.0
    """Weight of the current batch's loss relative to other ranks'; set by ``join``."""
    reduces: bool = True
    """False inside ``no_sync`` and ``coalesce_grad_reduction``."""
    backwards: int = 0
    """Backwards since the last boundary."""

    def join(self, batches: Iterable[T], *, until: Until = "last") -> Iterator[T]:
        """Yield this rank's ``batches`` equally often on every rank, for uneven data.

        ``until`` "first": all ranks stop once the first one runs out. "last": once the last one
        does; until then a rank without data repeats its last batch with loss weight 0, and
        gradients are means over the ranks with data. Each batch costs an all-reduce of two
        integers. Collective.

        Raises ValueError if a rank has no batch at all, or for another ``until``.
        """
        if until not in ("last", "first"):
            raise ValueError(f'join(until={until!r}): expected "last" or "first"')
        return self._joined(batches, until)

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the current micro batch ends an accumulation window."""
        return self.accumulation.is_boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Set whether the current micro batch ends a window; applies until the next call.

        Raises MisuseError if ``managed_gradient_accumulation`` is false: then each ``step`` ends a
        window.
        """
        if not self.accumulation.is_managed:
            raise MisuseError(
                "set_gradient_accumulation_boundary() conflicts with managed_gradient_accumulation "
                "false, where every step() ends a window; use one of the two"
            )
        self.accumulation.forced = is_boundary

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Skip gradient reduction inside; only for stages 0 and 1, which do not shard gradients."""
        if self.stage >= 2:
            raise MisuseError(
                "no_sync context manager is incompatible with gradient partitioning logic of ZeRO "
                f"stage {self.stage}: use coalesce_grad_reduction(), which "
                "reduces once at its end"
            )
        with self._unreduced():
            yield

    @contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        """Reduce the gradients of several backwards once, on exit.

        At stages 2 and 3 they are summed in the dtype of the weights until then, as in DeepSpeed.
        """
        with self._unreduced(), self.gradients.reduced_at_end():
            yield

    @contextmanager
    def _unreduced(self) -> Iterator[None]:
        if not self.reduces:
            raise MisuseError(
                "no_sync context manager reentry is unsupported: no_sync() and "
                "coalesce_grad_reduction() cannot be nested"
            )
        self.reduces = False
        try:
            yield
        finally:
            self.reduces = True

    def _joined(self, batches: Iterable[T], until: Until) -> Iterator[T]:
        ranks = self.topology.size("samples")
        join = Join(self.counters, self.topology)
        own, batch = iter(batches), _NONE
        try:
            while True:
                upcoming = next(own, _NONE)
                with_batch = join.count(upcoming is not _NONE, batch is not _NONE)
                if with_batch == 0 or (until == "first" and with_batch < ranks):
                    return
                self.loss_weight = ranks / with_batch if upcoming is not _NONE else 0.0
                batch = batch if upcoming is _NONE else upcoming
                yield batch
        finally:
            self.loss_weight = 1.0
            join.close()

    def restart(self) -> None:
        """Start the window again, after its gradients were dropped."""
        self.accumulation.restart_window()
        self.backwards = 0

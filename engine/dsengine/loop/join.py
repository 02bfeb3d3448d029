"""Training with uneven numbers of batches per rank.

[Note: join]
Every forward and backward of a sharded model is collective, so before each batch the ranks exchange
who has one. A rank without data repeats its last batch with loss weight 0; the other ranks' losses
are weighted up so that a gradient is the mean over the ranks with data (``Windows.loss_weight``).
"""

from typing import Any, Literal

import torch
import torch.distributed as dist

from dsengine.communication.peers import in_phase
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

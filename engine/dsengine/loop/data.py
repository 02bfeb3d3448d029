"""Data loader for training: each rank's share of the data, resumable.

Samples are distributed as in DeepSpeed: ``DistributedSampler`` with seed 0, shuffled, the same
order in every epoch (``set_epoch`` is never called).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from dsconfig import Plan
from dsengine.topology import Topology

T = TypeVar("T")
Collate = Callable[[list[Any]], Any]


class _Resumed(Sampler[int]):
    """A sampler that skips, once, the ``skip`` samples that all ranks have already consumed.

    ``full_order`` yields the samples of all ranks; the remaining ones are distributed like
    DistributedSampler does, padded with the first ones. Without ``full_order`` the sampler is the
    script's own and ``skip`` counts this rank's samples.
    """

    def __init__(self, sampler: Sampler[int], full_order: DistributedSampler[Any] | None) -> None:
        self.sampler = sampler
        self.skip = 0
        self._full_order = full_order

    def __iter__(self) -> Iterator[int]:
        skip, self.skip = self.skip, 0
        if skip == 0 or self._full_order is None:
            yield from islice(self.sampler, skip, None)
            return
        assert isinstance(self.sampler, DistributedSampler)
        self._full_order.epoch = self.sampler.epoch
        order, ranks = list(self._full_order), self.sampler.num_replicas
        rest = order[skip:]
        rest += islice(cycle(order), -len(rest) % ranks)
        yield from rest[self.sampler.rank :: ranks]

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


class TrainingLoader:
    """A loader whose position is saved in checkpoints and valid at other world sizes.

    The position counts samples over all ranks: DistributedSampler deals out one list in turn, so
    the first ``p`` samples are the same at any world size. With the script's own ``sampler`` it
    counts this rank's samples.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        micro_batch: int,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
        collate_fn: Collate | None = None,
        sampler: Sampler[int] | None = None,
    ) -> None:
        full_order: DistributedSampler[Any] | None = None
        if sampler is None:
            # Padded rather than truncated: drop_last applies to batches only.
            sampler = DistributedSampler(dataset, world_size, rank, shuffle=shuffle, seed=0)
            full_order = DistributedSampler(dataset, 1, 0, shuffle=shuffle, seed=0)
        self.micro_batch = micro_batch
        self.world_size = 1 if full_order is None else world_size
        self.sampler = sampler
        self._resumed = _Resumed(sampler, full_order)
        self.loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=micro_batch,
            sampler=self._resumed,
            num_workers=num_workers,
            pin_memory=pin_memory and torch.cuda.is_available(),
            drop_last=drop_last,
            collate_fn=collate_fn,
        )
        self.passes = 0
        """Completed epochs."""
        self.post_process_func: Callable[[Any, dict[str, Any]], Any] | None = None
        """Called with every batch and the loader's state; returns the batch to yield."""
        self.loads = 0
        """Positions loaded so far."""
        self._batches = 0
        self._offset = 0

    @property
    def dataset(self) -> Dataset[Any]:
        return self.loader.dataset

    @property
    def position(self) -> int:
        """Samples of this epoch yielded so far, over all ranks."""
        return self._offset + self._batches * self.micro_batch * self.world_size

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rest of a resumed epoch, otherwise a full epoch."""
        self._offset, self._batches = self._resumed.skip, 0
        for batch in self.loader:
            self._batches += 1
            if self.post_process_func is not None:
                # DeepSpeed's functions read the curriculum difficulties; there are none here.
                extra = {"consumed_samples": self.position, "current_difficulties": {}}
                batch = self.post_process_func(batch, self.state_dict() | extra)
            yield batch
        self.passes += 1
        self._offset, self._batches = 0, 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume at a saved position, at any world size, at the next ``iter``."""
        self.loads += 1
        position, per_epoch = state["position"], len(self) * self.micro_batch * self.world_size
        self.passes = state["passes"]
        if position >= min(per_epoch, len(self._resumed) * self.world_size):
            # Saved after the last batch of an epoch: start the next one.
            self.passes, position = self.passes + 1, 0
        self._offset, self._batches = position, 0
        self._resumed.skip = position


class Loaders:
    """Builds this rank's loaders."""

    def __init__(self, plan: Plan, topology: Topology, collate_fn: Collate | None) -> None:
        self._micro_batch = plan.batch.micro_batch
        self._drop_last = plan.effective.dataloader_drop_last
        self._topology = topology
        self.collate_fn = collate_fn
        """Default collate function."""

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        route: str = "train",
        pin_memory: bool = True,
        data_sampler: Any = None,
        collate_fn: Collate | None = None,
        num_local_io_workers: int | None = None,
    ) -> TrainingLoader:
        """Return this rank's loader over ``dataset``.

        ``batch_size``: default the micro batch. ``route``: "train" shuffles; "eval" and "predict"
        keep the order. A ``data_sampler`` replaces both and yields this rank's samples.
        ``num_local_io_workers``: default 2 with an accelerator, 0 on CPU, where they would compete
        with training.
        """
        if num_local_io_workers is None:
            num_local_io_workers = 2 if torch.cuda.is_available() else 0
        return TrainingLoader(
            dataset,
            micro_batch=batch_size or self._micro_batch,
            rank=self._topology.rank("samples"),
            world_size=self._topology.size("samples"),
            shuffle=route not in ("eval", "predict"),
            drop_last=self._drop_last,
            num_workers=num_local_io_workers,
            pin_memory=pin_memory,
            collate_fn=collate_fn or self.collate_fn,
            sampler=data_sampler,
        )


class RepeatingLoader(Generic[T]):
    """An endless iterator that restarts its loader when it is exhausted."""

    def __init__(self, loader: Iterable[T]) -> None:
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self) -> "RepeatingLoader[T]":
        return self

    def __next__(self) -> T:
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

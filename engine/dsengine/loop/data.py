"""The training loader: each rank its own part of the data, from where it stopped.

Samples come as DeepSpeed hands them out: ``DistributedSampler`` with seed 0, shuffled, the same
order in every pass (``set_epoch`` is never called).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.distributed import DistributedSampler

T = TypeVar("T")


class _Resumed(Sampler[int]):
    """A sampler that leaves out, once, the ``skip`` samples that all ranks have consumed before.

    ``whole`` gives the samples of all ranks; what is left of them is dealt out as
    DistributedSampler does it, the first ones again where the ranks cannot share it evenly.
    Without ``whole`` the sampler is a script's: the samples left out are this rank's.
    """

    def __init__(self, sampler: Sampler[int], whole: DistributedSampler[Any] | None) -> None:
        self.sampler = sampler
        self.skip = 0
        self._whole = whole

    def __iter__(self) -> Iterator[int]:
        skip, self.skip = self.skip, 0
        if skip == 0 or self._whole is None:
            yield from islice(self.sampler, skip, None)
            return
        assert isinstance(self.sampler, DistributedSampler)
        self._whole.epoch = self.sampler.epoch
        order, ranks = list(self._whole), self.sampler.num_replicas
        rest = order[skip:]
        rest += islice(cycle(order), -len(rest) % ranks)
        yield from rest[self.sampler.rank :: ranks]

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


class TrainingLoader:
    """A loader whose position is part of a checkpoint, and carries over to other world sizes.

    The position counts samples over all ranks: a DistributedSampler deals one list out in turn,
    so the first ``p`` samples of the list are the same at any world size. With the ``sampler`` of
    a script, of which only that knows what other ranks draw, it counts those of this rank.
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
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sampler: Sampler[int] | None = None,
    ) -> None:
        whole: DistributedSampler[Any] | None = None
        if sampler is None:
            # Padded, not cut, to a multiple of the ranks: drop_last is about batches only.
            sampler = DistributedSampler(dataset, world_size, rank, shuffle=shuffle, seed=0)
            whole = DistributedSampler(dataset, 1, 0, shuffle=shuffle, seed=0)
        self.micro_batch = micro_batch
        self.world_size = 1 if whole is None else world_size
        self.sampler = sampler
        self._resumed = _Resumed(sampler, whole)
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
        """Completed passes over the data."""
        self.post_process_func: Callable[[Any, dict[str, Any]], Any] | None = None
        """What every batch goes through, with the loader's state, before it is handed out."""
        self._batches = 0
        self._offset = 0

    @property
    def dataset(self) -> Dataset[Any]:
        return self.loader.dataset

    @property
    def position(self) -> int:
        """Samples of this pass handed out so far, over all ranks."""
        return self._offset + self._batches * self.micro_batch * self.world_size

    def __len__(self) -> int:
        """Return the batches of a whole pass."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rest of a pass that was resumed, else a whole pass."""
        self._offset, self._batches = self._resumed.skip, 0
        for batch in self.loader:
            self._batches += 1
            if self.post_process_func is not None:
                # DeepSpeed's functions look for its curriculum's difficulties: here there are none.
                told = {"consumed_samples": self.position, "current_difficulties": {}}
                batch = self.post_process_func(batch, self.state_dict() | told)
            yield batch
        self.passes += 1
        self._offset, self._batches = 0, 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at a saved position, on any number of ranks, at the next ``iter``."""
        position, whole = state["position"], len(self) * self.micro_batch * self.world_size
        self.passes = state["passes"]
        if position >= min(whole, len(self._resumed) * self.world_size):
            # Saved behind the last batch of a pass: the next one begins.
            self.passes, position = self.passes + 1, 0
        self._offset, self._batches = position, 0
        self._resumed.skip = position


class RepeatingLoader(Generic[T]):
    """An endless iterator over a loader that starts again when it is through."""

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

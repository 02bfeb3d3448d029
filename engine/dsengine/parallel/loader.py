"""A loader that divides samples along the sequence."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import IterableDataset

from dsconfig import nearest_degree
from dsengine.topology import world_size

IGNORED = -100
"""Label of tokens that do not count in the loss."""
FAULTY = -1
"""Exchanged in place of the length of a batch that cannot be divided."""


class SequenceLoader:
    """Yields this rank's part of the sequences of every rank in a group.

    Each rank draws a batch of its own from ``dl``; the group then works on these batches one after
    the other, so a draw makes as many micro batches as the group has ranks. ``labels`` become
    ``shift_labels``, the label of the next token, because the next token may be on another rank.
    Batches are dicts of [batch, sequence] tensors with ``input_ids``, ``position_ids`` and
    ``labels``; other values are passed on. Parts are on the host. The loaders of a group end with
    the shortest.
    """

    batch_size, drop_last, prefetch_factor = None, False, None

    def __init__(
        self,
        dl: Iterable[Any],
        sp_rank: int,
        sp_group: dist.ProcessGroup,
        sp_world_size: int,
        device: Any,
    ) -> None:
        self.dl = dl
        self.sp_rank = sp_rank
        self.sp_group = sp_group
        self.sp_world_size = sp_world_size
        self.device = device
        self.iter: Iterator[Any] = iter(dl)
        self.micro_batches: deque[dict[str, Any]] = deque()

    def __len__(self) -> int:
        return len(self.dl) * self.sp_world_size  # type: ignore[arg-type]

    @property
    def dataset(self) -> IterableDataset[Any]:
        """The parts. accelerate makes a loader of them to skip those before a checkpoint."""
        return _Parts(self)

    def __iter__(self) -> "SequenceLoader":
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next part. At the end of ``dl``, start it anew and raise StopIteration."""
        if not self.micro_batches:
            self.refill()
        return self.micro_batches.popleft()

    def refill(self) -> None:
        """Draw one batch on each rank, and divide them. Collective over the group.

        Raises ValueError on every rank if a batch of one cannot be divided.
        """
        batch = next(self.iter, None)
        problem = None if batch is None else self._problem(batch)
        drawn = 0 if batch is None else FAULTY if problem else batch["input_ids"].shape[1]
        length = torch.tensor([drawn], device=self.device)
        lengths = [torch.zeros_like(length) for _ in range(self.sp_world_size)]
        dist.all_gather(lengths, length, group=self.sp_group)
        sizes = [int(each) for each in lengths]
        if FAULTY in sizes:
            problems: list[str | None] = [None] * self.sp_world_size
            dist.all_gather_object(problems, problem, group=self.sp_group)
            raise ValueError(problem or next(filter(None, problems)))
        if batch is None or 0 in sizes:
            self.iter = iter(self.dl)
            raise StopIteration
        gathered = {name: self._gather(value, sizes) for name, value in batch.items()}
        for rank in range(self.sp_world_size):
            whole = {name: values[rank] for name, values in gathered.items()}
            self.micro_batches.append(self._part(whole))

    def _problem(self, batch: dict[str, Any]) -> str | None:
        """Return why ``batch`` cannot be divided."""
        if not isinstance(batch, dict):
            return (
                f"sequence parallelism requires batches that are dicts, not {type(batch).__name__}"
            )
        missing = [name for name in ("input_ids", "labels") if name not in batch]
        if missing:
            return f"sequence parallelism requires {missing[0]} in every batch"
        if "position_ids" not in batch:
            return (
                "sequence parallelism requires position_ids in every batch: let the collator add "
                "torch.arange(length), restarting at each packed sample"
            )
        ids = batch["input_ids"]
        if not isinstance(ids, Tensor) or ids.dim() < 2:
            return "sequence parallelism requires input_ids of the shape [batch, sequence]"
        shape = ids.shape
        for name, value in batch.items():
            if isinstance(value, Tensor) and value.shape[1:2] != shape[1:2]:
                return (
                    f"{name} has the shape {tuple(value.shape)}, but sequence parallelism divides "
                    f"it like input_ids, {tuple(shape)}"
                )
        if shape[1] % self.sp_world_size:
            nearest = nearest_degree(self.sp_world_size, world_size(), lambda n: shape[1] % n == 0)
            return (
                f"a sequence of {shape[1]} tokens cannot be divided over sequence_parallel_size "
                f"{self.sp_world_size}: let the collator pad to a multiple of it, or use {nearest}"
            )
        return None

    def _gather(self, value: Any, lengths: list[int]) -> list[Any]:
        """Return ``value`` of every rank of the group."""
        if not isinstance(value, Tensor):
            objects: list[Any] = [None] * self.sp_world_size
            dist.all_gather_object(objects, value, group=self.sp_group)
            return objects
        value = value.to(self.device).contiguous()
        shapes = [(value.shape[0], length, *value.shape[2:]) for length in lengths]
        parts = [value.new_empty(shape) for shape in shapes]
        dist.all_gather(parts, value, group=self.sp_group)
        return parts

    def _part(self, whole: dict[str, Any]) -> dict[str, Any]:
        labels = whole.pop("labels")
        padded = torch.nn.functional.pad(labels, (0, 1), value=IGNORED)
        whole["shift_labels"] = padded[..., 1:]
        length = labels.shape[1] // self.sp_world_size
        start = length * self.sp_rank
        return {
            name: value[:, start : start + length].contiguous().cpu()
            if isinstance(value, Tensor)
            else value
            for name, value in whole.items()
        }


class _Parts(IterableDataset[Any]):
    """The micro batches of a loader."""

    def __init__(self, loader: SequenceLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return self._loader

"""torch's Adafactor on sharded parameters.

[Note: Adafactor in two reductions]
Adafactor scales an update by the root mean square of the full parameter and of the full update, and
estimates the second moments of a matrix from the means of its rows and columns. With rows divided
among ranks, sums over a row are local; sums over columns and the norms need a reduction over ranks.
Two collectives serve all parameters of a step: one before the moments, one for the norms of the
updates. The factored moments are small and replicated on every rank.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Adafactor, Optimizer

from dsengine.communication.devices import device_for
from dsengine.optimizers.binding import Binding

FACTORS = ("row_var", "col_var")


@dataclass(slots=True)
class _Update:
    """One parameter's update. ``first``: the row of the full tensor where the shard begins."""

    shard: nn.Parameter
    gradient: Tensor
    full: torch.Size
    first: int
    group: dict[str, Any]
    state: dict[str, Any]
    rate: float = 0.0
    change: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.state:
            self.state["step"] = torch.tensor(0.0)
            self.state |= self._zero_moments()

    def _zero_moments(self) -> dict[str, Tensor]:
        if not self._is_factored:
            return {"variance": torch.zeros_like(self.shard)}
        *batch, rows, columns = self.full
        zeros = self.shard.new_zeros
        return {"row_var": zeros(*batch, rows, 1), "col_var": zeros(*batch, 1, columns)}

    @property
    def _is_factored(self) -> bool:
        return len(self.full) > 1

    def squares(self) -> list[Tensor]:
        """Return flat tensors to sum over ranks: squares of the shard, of rows, of columns."""
        sums = [self.shard.square().sum().reshape(1)]
        if self._is_factored:
            squared = self.gradient.square()
            row, column = squared.sum(dim=-1, keepdim=True), squared.sum(dim=-2, keepdim=True)
            sums.append(self._in_full(row).flatten())
            sums.append(column.flatten() if self._is_matrix else self._in_full(column).flatten())
        return sums

    @property
    def _is_matrix(self) -> bool:
        """If so, rows of the factorization are divided among ranks, otherwise full matrices."""
        return len(self.full) == 2

    def _in_full(self, local: Tensor) -> Tensor:
        """Return ``local`` at its rows, with zeros in the rows of other ranks."""
        rows = local.new_zeros(self.full[0], *local.shape[1:])
        self._own(rows).copy_(local)
        return rows

    def _own(self, rows: Tensor) -> Tensor:
        return rows[self.first : self.first + self.shard.shape[0]]

    def prepare(self, squared_norm: float, summed: Iterator[Tensor]) -> Tensor:
        """Update the moments and decay the weights; return the update's local squared norm.

        ``squared_norm`` is that of the full parameter.
        """
        group, state = self.group, self.state
        state["step"] += 1
        step, rate = float(state["step"]), float(group["lr"])
        size = (squared_norm / self.full.numel()) ** 0.5
        self.rate = max(group["eps"][1], size) * min(rate, step**-0.5)
        if group["weight_decay"]:
            self.shard.mul_(1 - rate * group["weight_decay"])
        self._update_moments(summed, step ** group["beta2_decay"])
        epsilon = group["eps"][0]
        epsilon = torch.finfo(self.shard.dtype).eps if epsilon is None else epsilon
        moments = self._second_moments(epsilon).clamp_(min=epsilon * epsilon)
        self.change = moments.rsqrt_().mul_(self.gradient)
        return self.change.square().sum().reshape(1)

    def _update_moments(self, summed: Iterator[Tensor], weight: float) -> None:
        if not self._is_factored:
            self.state["variance"].lerp_(self.gradient.square(), weight)
            return
        for name, count in zip(FACTORS, (self.full[-1], self.full[-2]), strict=True):
            moment = self.state[name]
            moment.lerp_(next(summed).view(moment.shape) / count, weight)

    def _second_moments(self, epsilon: float) -> Tensor:
        """Return the estimate for this rank's shard."""
        if not self._is_factored:
            return self.state["variance"].clone()
        row, column = (self.state[name] for name in FACTORS)
        mean = row.mean(dim=-2, keepdim=True).clamp_(min=epsilon)
        if not self._is_matrix:
            mean, column = self._own(mean), self._own(column)
        return (self._own(row) @ column).div_(mean)

    def apply(self, squared_norm: float) -> None:
        """Update the weights; ``squared_norm`` is that of the full update."""
        assert self.change is not None
        size = (squared_norm / self.full.numel()) ** 0.5
        self.shard.add_(self.change, alpha=-self.rate / max(1.0, size / self.group["d"]))


class AdafactorBinding(Binding):
    """Lets an Adafactor step this rank's shards as it would step the full parameters."""

    REPLICATED_STATES: ClassVar = frozenset(FACTORS)

    @staticmethod
    def can_step_shards(optimizer: Optimizer, masters: Mapping[str, nn.Parameter]) -> bool:
        return type(optimizer) is Adafactor

    @torch.no_grad()
    def step(self) -> None:
        updates = list(self._updates())
        if not updates:
            return
        squares = [update.squares() for update in updates]
        summed = iter(self._summed([tensor for own in squares for tensor in own]))
        sums = [[next(summed) for _ in own] for own in squares]
        # All numbers are read at once, because each read synchronizes with the device.
        norms = torch.cat([own[0] for own in sums]).tolist()
        prepared = [
            update.prepare(norm, iter(own[1:]))
            for update, norm, own in zip(updates, norms, sums, strict=True)
        ]
        norms = torch.cat(self._summed(prepared)).tolist()
        for update, norm in zip(updates, norms, strict=True):
            update.apply(norm)

    def _updates(self) -> Iterator[_Update]:
        shapes = {shard: master.shape for master, shard in self._pairs}
        for group in self.optimizer.param_groups:
            for shard in group["params"]:
                if shard.grad is None:
                    continue
                full = shapes[shard]
                gradient = -shard.grad if group["maximize"] else shard.grad
                state = self.optimizer.state[shard]
                yield _Update(shard, gradient, full, self._first_row(full), group, state)

    def _first_row(self, full: torch.Size) -> int:
        """Return this rank's first row; rows are divided as by ``torch.chunk``."""
        mesh, axis = self._sharding()
        rows = full[0] if full else 0
        return min(mesh.get_local_rank(axis) * -(-rows // mesh.size(axis)), rows)

    def _summed(self, tensors: list[Tensor]) -> list[Tensor]:
        mesh, axis = self._sharding()
        group, flat = mesh.get_group(axis), torch.cat(tensors)
        reduced = flat.to(device_for(group))
        dist.all_reduce(reduced, group=group)
        return list(reduced.to(flat.device).split([tensor.numel() for tensor in tensors]))

    def _sharding(self) -> tuple[Any, int]:
        """Return the mesh and the axis along which masters are sharded."""
        master = next(tensor for tensor in self.masters.values() if isinstance(tensor, DTensor))
        axes = [i for i, p in enumerate(master.placements) if isinstance(p, Shard)]
        return master.device_mesh, axes[0]

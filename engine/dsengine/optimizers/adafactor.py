"""torch's Adafactor on divided parameters.

[Note: Adafactor in two sums]
Adafactor scales an update by the root mean square of the whole parameter and of the whole
update, and estimates the second moments of a matrix from the means of its rows and columns.
With rows divided among ranks, sums over a row are local; sums over columns and the norms are
sums over ranks. Two collectives serve all parameters of a step: one before the moments, one for
the norms of the updates. The factored moments are small and held whole on every rank.
"""

from collections.abc import Iterator
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
    """One parameter in a step. ``first``: the row of the whole where this rank's part begins."""

    part: nn.Parameter
    gradient: Tensor
    whole: torch.Size
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
            return {"variance": torch.zeros_like(self.part)}
        *batch, rows, columns = self.whole
        zeros = self.part.new_zeros
        return {"row_var": zeros(*batch, rows, 1), "col_var": zeros(*batch, 1, columns)}

    @property
    def _is_factored(self) -> bool:
        return len(self.whole) > 1

    def squares(self) -> list[Tensor]:
        """What is summed over ranks, flat: squares of the part, of rows, of columns."""
        sums = [self.part.square().sum().reshape(1)]
        if self._is_factored:
            squared = self.gradient.square()
            row, column = squared.sum(dim=-1, keepdim=True), squared.sum(dim=-2, keepdim=True)
            sums.append(self._placed(row).flatten())
            sums.append(column.flatten() if self._is_matrix else self._placed(column).flatten())
        return sums

    @property
    def _is_matrix(self) -> bool:
        """Only then it is rows of the factorisation that are divided, not whole matrices."""
        return len(self.whole) == 2

    def _placed(self, local: Tensor) -> Tensor:
        """``local`` at its place among zeros for the rows of other ranks."""
        rows = local.new_zeros(self.whole[0], *local.shape[1:])
        self._own(rows).copy_(local)
        return rows

    def _own(self, rows: Tensor) -> Tensor:
        return rows[self.first : self.first + self.part.shape[0]]

    def prepare(self, squared_norm: float, summed: Iterator[Tensor]) -> Tensor:
        """Update the moments and decay the weights; return the change's squared norm here.

        ``squared_norm`` is that of the whole parameter.
        """
        group, state = self.group, self.state
        state["step"] += 1
        step, rate = float(state["step"]), float(group["lr"])
        size = (squared_norm / self.whole.numel()) ** 0.5
        self.rate = max(group["eps"][1], size) * min(rate, step**-0.5)
        if group["weight_decay"]:
            self.part.mul_(1 - rate * group["weight_decay"])
        self._take_moments(summed, step ** group["beta2_decay"])
        epsilon = group["eps"][0]
        epsilon = torch.finfo(self.part.dtype).eps if epsilon is None else epsilon
        moments = self._second_moments(epsilon).clamp_(min=epsilon * epsilon)
        self.change = moments.rsqrt_().mul_(self.gradient)
        return self.change.square().sum().reshape(1)

    def _take_moments(self, summed: Iterator[Tensor], weight: float) -> None:
        if not self._is_factored:
            self.state["variance"].lerp_(self.gradient.square(), weight)
            return
        for name, count in zip(FACTORS, (self.whole[-1], self.whole[-2]), strict=True):
            moment = self.state[name]
            moment.lerp_(next(summed).view(moment.shape) / count, weight)

    def _second_moments(self, epsilon: float) -> Tensor:
        """The estimate for this rank's part."""
        if not self._is_factored:
            return self.state["variance"].clone()
        row, column = (self.state[name] for name in FACTORS)
        mean = row.mean(dim=-2, keepdim=True).clamp_(min=epsilon)
        if not self._is_matrix:
            mean, column = self._own(mean), self._own(column)
        return (self._own(row) @ column).div_(mean)

    def apply(self, squared_norm: float) -> None:
        """Change the weights; ``squared_norm`` is that of the whole change."""
        assert self.change is not None
        size = (squared_norm / self.whole.numel()) ** 0.5
        self.part.add_(self.change, alpha=-self.rate / max(1.0, size / self.group["d"]))


class AdafactorBinding(Binding):
    """Holds an Adafactor to this rank's parts of the masters, and steps it as on the whole."""

    WHOLE_STATES: ClassVar = frozenset(FACTORS)

    @staticmethod
    def steps_parts(kind: type[Optimizer]) -> bool:
        return kind is Adafactor

    @torch.no_grad()
    def step(self) -> None:
        updates = list(self._updates())
        if not updates:
            return
        squares = [update.squares() for update in updates]
        summed = iter(self._summed([each for own in squares for each in own]))
        sums = [[next(summed) for _ in own] for own in squares]
        # All numbers are read at once: to read one is to wait for the device.
        sizes = torch.cat([each[0] for each in sums]).tolist()
        prepared = [
            update.prepare(size, iter(each[1:]))
            for update, size, each in zip(updates, sizes, sums, strict=True)
        ]
        norms = torch.cat(self._summed(prepared)).tolist()
        for update, norm in zip(updates, norms, strict=True):
            update.apply(norm)

    def _updates(self) -> Iterator[_Update]:
        shapes = {part: master.shape for master, part in self._pairs}
        for group in self.optimizer.param_groups:
            for part in group["params"]:
                if part.grad is None:
                    continue
                whole = shapes[part]
                gradient = -part.grad if group["maximize"] else part.grad
                state = self.optimizer.state[part]
                yield _Update(part, gradient, whole, self._first_row(whole), group, state)

    def _first_row(self, whole: torch.Size) -> int:
        """Rows are divided as ``torch.chunk`` divides them."""
        mesh, axis = self._sharding()
        rows = whole[0] if whole else 0
        return min(mesh.get_local_rank(axis) * -(-rows // mesh.size(axis)), rows)

    def _summed(self, tensors: list[Tensor]) -> list[Tensor]:
        mesh, axis = self._sharding()
        group, flat = mesh.get_group(axis), torch.cat(tensors)
        travels = flat.to(device_for(group))
        dist.all_reduce(travels, group=group)
        return list(travels.to(flat.device).split([each.numel() for each in tensors]))

    def _sharding(self) -> tuple[Any, int]:
        """The mesh and the axis along which masters are divided."""
        master = next(each for each in self.masters.values() if isinstance(each, DTensor))
        axes = [i for i, each in enumerate(master.placements) if isinstance(each, Shard)]
        return master.device_mesh, axes[0]

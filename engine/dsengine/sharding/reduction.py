"""Gradient reductions other than a plain mean in the gradients' own dtype.

``gradient_predivide_factor`` f: divide by f, sum, divide by world / f. ``prescale_gradients``:
divide by the world size, then sum. ``gradient_allreduce_op: sum``: no division. Gradients are
communicated in ``communication_data_type`` ("wire").
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dsconfig import Effective

_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Renamed in torch 2.13, where the old name warns."""


@dataclass(frozen=True, slots=True)
class Averaging:
    """Factors applied to gradients before and after the sum."""

    before: float
    after: float
    is_plain_mean: bool

    @classmethod
    def of(cls, effective: Effective, ranks: int, copies: int = 1) -> "Averaging":
        """Return the factors for a sum over ``ranks``, then over ``copies``."""
        world = ranks * copies
        settings = effective.gradients
        if settings.allreduce_op == "sum":
            return cls(1.0, 1.0, world == 1)
        if settings.prescale:
            return cls(1.0 / world, 1.0, False)
        factor = settings.predivide_factor
        return cls(1.0 / factor, factor / world, factor == 1.0)


def all_reduce_hook(averaging: Averaging, wire: torch.dtype) -> Any:
    """Return a communication hook for DistributedDataParallel."""

    def hook(
        group: dist.ProcessGroup,
        bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
    ) -> torch.futures.Future[Tensor]:
        gradients = bucket.buffer()
        sent = gradients.to(wire) if gradients.dtype is not wire else gradients
        if averaging.before != 1.0:
            sent.mul_(averaging.before)
        work = dist.all_reduce(sent, group=group, async_op=True)
        assert work is not None

        def finish(_: Any) -> Tensor:
            if sent is not gradients:
                gradients.copy_(sent)
            if averaging.after != 1.0:
                gradients.mul_(averaging.after)
            return gradients

        return work.get_future().then(finish)

    return hook


class ScaledReduceScatter:
    """A reduce-scatter for ``fully_shard`` in dtype ``wire``, with factors before and after it."""

    def __init__(self, averaging: Averaging, wire: torch.dtype) -> None:
        self.averaging = averaging
        self.wire = wire

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        del op, async_op
        if self.averaging.before != 1.0:
            input_tensor.mul_(self.averaging.before)
        sent = input_tensor.to(self.wire)
        result = output_tensor
        if sent is not input_tensor:
            result = torch.empty_like(output_tensor, dtype=sent.dtype)
        _reduce_scatter(result, sent, op=dist.ReduceOp.SUM, group=group)
        if result is not output_tensor:
            output_tensor.copy_(result)
        if self.averaging.after != 1.0:
            output_tensor.mul_(self.averaging.after)
        return None

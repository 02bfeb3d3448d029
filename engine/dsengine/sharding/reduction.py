"""Gradient reductions other than a plain mean in the gradients' own dtype.

``gradient_predivide_factor`` f: divide by f, sum, divide by world / f. ``prescale_gradients``:
divide by the world size, then sum. ``gradient_allreduce_op: sum``: no division. Gradients are
communicated in ``communication_data_type`` ("wire").

[Note: sparse gradients]
Those of embeddings are gathered as indices and values, padded to the longest: NCCL cannot reduce
sparse tensors. The lengths are read on the host, which waits for them, as in DeepSpeed.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from dsconfig import Effective
from dsengine.torch_private.groups import all_gather_flat

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
        if gradients.is_sparse:
            return _completed(_summed_sparse(gradients, averaging, wire, group))
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


def _completed(result: Tensor) -> torch.futures.Future[Tensor]:
    devices: Any = None if result.device.type == "cpu" else [result.device]
    future = torch.futures.Future[Tensor](devices=devices)
    future.set_result(result)
    return future


def _summed_sparse(
    gradient: Tensor, averaging: Averaging, wire: torch.dtype, group: dist.ProcessGroup
) -> Tensor:
    """Return the sum of a sparse gradient over the ranks, with the factors of ``averaging``."""
    own = gradient.coalesce()
    indices, values = own.indices(), own.values().to(wire)
    length = torch.tensor([indices.shape[1]], device=indices.device)
    lengths = _gathered(length, group).flatten().tolist()
    padding = max(lengths) - indices.shape[1]
    all_indices = _gathered(F.pad(indices, (0, padding)), group)
    padded = torch.cat([values, values.new_zeros(padding, *values.shape[1:])])
    all_values = _gathered(padded * averaging.before, group)
    parts = list(enumerate(lengths))
    found = torch.cat([all_values[rank, :length] for rank, length in parts]).to(gradient.dtype)
    return torch.sparse_coo_tensor(
        torch.cat([all_indices[rank, :, :length] for rank, length in parts], dim=1),
        found * averaging.after,
        gradient.shape,
    ).coalesce()


def _gathered(own: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return each rank's tensor, which have equal shapes, stacked."""
    full = own.new_empty(group.size(), *own.shape)
    all_gather_flat(full.view(-1), own.contiguous().view(-1), group=group)
    return full


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

"""Stage 0: gradient accumulation in another dtype than the model's.

[Note: where the sums are reduced]
DistributedDataParallel reduces the gradients of one backward. Gradients of earlier micro batches
are moved to the sums after each of their backwards; in the last backward the hook adds each bucket
to the sums and reduces those in the communication dtype instead of the bucket.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsconfig.features.table import FEATURES
from dsengine.sharding.reduction import Averaging
from dsengine.torch_private.tensors import foreach_copy_, foreach_mul_


@dataclass(eq=False)
class WindowSums:
    """Gradient sums over the window by parameter, in ``dtype``."""

    parameters: Sequence[nn.Parameter]
    dtype: torch.dtype
    averaging: Averaging
    wire: torch.dtype
    _sums: dict[nn.Parameter, Tensor] = field(init=False, default_factory=dict[Any, Tensor])

    @torch.no_grad()
    def accumulate(self) -> None:
        """Add the gradients of an unreduced backward and leave zeros.

        Zeros instead of None: the reducer tracks over a window which parameters had a gradient and
        requires one there.
        """
        for parameter in self.parameters:
            if parameter.grad is not None:
                self._add(parameter, parameter.grad)
                parameter.grad.zero_()

    def keep_reduced(self) -> None:
        """After a reduction, drop sums that the hook added for parameters without a gradient."""
        for parameter in self.parameters:
            if parameter.grad is None:
                self._sums.pop(parameter, None)
            parameter.grad = None

    def of(self, parameter: nn.Parameter) -> Tensor | None:
        return self._sums.get(parameter)

    def __len__(self) -> int:
        return len(self._sums)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._sums.values())

    def clear(self) -> None:
        self._sums.clear()
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def hook(
        self,
        group: dist.ProcessGroup,
        bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
    ) -> torch.futures.Future[Tensor]:
        """The communication hook; its result goes to ``.grad``, which is not read."""
        parameters: list[Any] = bucket.parameters()
        gradients = bucket.gradients()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            self._add(parameter, gradient)
        sums = [self._sums[parameter] for parameter in parameters]
        sent, parts = bucket.buffer(), gradients
        if sent.dtype is not self.wire:
            sent = torch.empty_like(sent, dtype=self.wire)
            sizes = [total.numel() for total in sums]
            parts = [p.view_as(s) for p, s in zip(sent.split(sizes), sums, strict=True)]
        foreach_copy_(parts, sums)
        sent.mul_(self.averaging.before)
        work = dist.all_reduce(sent, group=group, async_op=True)
        assert work is not None

        def finish(_: Any) -> Tensor:
            foreach_copy_(sums, parts)
            foreach_mul_(sums, self.averaging.after)
            return bucket.buffer()

        return work.get_future().then(finish)

    def _add(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        if gradient.is_sparse:
            raise ValueError(FEATURES["sparse_gradient_sums"].text)
        if parameter in self._sums:
            self._sums[parameter].add_(gradient)
        else:
            self._sums[parameter] = gradient.to(self.dtype, copy=True)

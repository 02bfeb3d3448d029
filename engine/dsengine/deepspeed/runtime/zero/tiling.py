"""A Linear in tiles: at stage 3 only the current tile is unsharded."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dsengine.deepspeed.runtime.utils import partition_uniform
from dsengine.sharding.zero.gathered import GatheredParameters


class TiledLinear(nn.Module):
    """``nn.Linear(in_features, out_features)`` computed by ``in_splits`` x ``out_splits`` tiles.

    Each tile is a module made by ``linear_cls``; the last tile of a row has the bias.
    ``input_is_already_split``: forward takes the parts of the input.
    ``combine_out_splits=False``: it returns those of the output. ``init_linear`` provides the
    weights. Raises RuntimeError for more tiles than features, or none.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        in_splits: int = 1,
        out_splits: int = 1,
        input_is_already_split: bool = False,
        combine_out_splits: bool = True,
        linear_cls: Callable[..., nn.Module] = nn.Linear,
        init_linear: nn.Linear | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.use_bias = bias
        self.in_splits, self.out_splits = in_splits, out_splits
        self.input_is_already_split = input_is_already_split
        self.combine_out_splits = combine_out_splits
        self.in_parts = _parts(in_features, in_splits, "in_splits")
        self.out_parts = _parts(out_features, out_splits, "out_splits")
        columns, last = list(pairwise(self.in_parts)), in_splits - 1
        self.linears = nn.ModuleList(
            nn.ModuleList(
                linear_cls(right - left, bottom - top, bias=bias and index == last, **kwargs)
                for index, (left, right) in enumerate(columns)
            )
            for top, bottom in pairwise(self.out_parts)
        )
        if init_linear is not None:
            self.copy_params_from(init_linear)

    def forward(self, input_: Tensor | Sequence[Tensor]) -> Any:
        if isinstance(input_, Tensor):
            sizes = [right - left for left, right in pairwise(self.in_parts)]
            inputs: Sequence[Tensor] = input_.split(sizes, dim=-1)
        else:
            inputs = input_
        rows = [
            sum(tile(part) for tile, part in zip(row, inputs, strict=True)) for row in self._rows()
        ]
        return torch.cat(rows, dim=-1) if self.combine_out_splits else rows  # type: ignore[arg-type]

    @torch.no_grad()
    def copy_params_from(self, other: nn.Linear) -> None:
        """Copy the weights of ``other``, which must be unsharded; at stage 3 collective."""
        for row, (top, bottom) in zip(self._rows(), pairwise(self.out_parts), strict=True):
            for tile, (left, right) in zip(row, pairwise(self.in_parts), strict=True):
                with GatheredParameters(tile.parameters(), modifier_rank=0):
                    tile.weight.copy_(other.weight[top:bottom, left:right])
                    if tile.bias is not None:
                        tile.bias.copy_(other.bias[top:bottom])

    def _rows(self) -> list[Any]:
        return list(self.linears)


def _parts(features: int, splits: int, name: str) -> list[int]:
    """Return the boundaries of the parts; the first ones may be larger by one."""
    if not 1 <= splits <= features:
        raise RuntimeError(f"{name} is {splits}, but must be from 1 to {features}")
    return partition_uniform(features, splits)


__all__ = ["TiledLinear"]

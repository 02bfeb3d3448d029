"""Computation in tiles along the sequence, so that large intermediate results never exist whole.

Each tile is computed again in backward. Gradients of weights are summed over tiles by autograd and
reduced once: ``fully_shard`` reduces after a unit's backward, so nothing has to be marked ready.
"""

from collections.abc import Callable, Iterable
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Reduction = Literal["mean", "sum"] | None


def _recomputed(function: Callable[..., Tensor], *args: Any, **options: Any) -> Tensor:
    return checkpoint(function, *args, use_reentrant=False, **options)  # type: ignore[return-value]


def sequence_tiled_compute(
    fn: Callable[..., Tensor],
    seqlen: int,
    shards: int,
    kwargs_to_shard: dict[str, Tensor],
    kwargs_to_pass: dict[str, Any],
    grad_requiring_tensor_key: str | None = None,
    compute_params: Iterable[Any] | None = None,
    output_unshard_dimension: int = 1,
    output_reduction: Reduction = "mean",
) -> Tensor:
    """Call ``fn`` on tiles of ``kwargs_to_shard`` ([batch, sequence, ...]) and join the results.

    Results are concatenated along ``output_unshard_dimension``; at 0, those of tiles are scalars
    and are stacked. Then they are reduced. ``grad_requiring_tensor_key`` and ``compute_params`` are
    DeepSpeed's and not needed.
    """
    del grad_requiring_tensor_key, compute_params
    step = ceil(seqlen / shards)
    results: list[Tensor] = []
    for start in range(0, seqlen, step):
        tile = {name: value[:, start : start + step] for name, value in kwargs_to_shard.items()}
        results.append(_recomputed(fn, **tile, **kwargs_to_pass))
    joined = (
        torch.stack(results)
        if output_unshard_dimension == 0
        else torch.cat(results, dim=output_unshard_dimension)
    )
    return _reduced(joined, output_reduction)


def _reduced(values: Tensor, reduction: Reduction) -> Tensor:
    match reduction:
        case None:
            return values
        case "mean":
            return values.mean()
        case "sum":
            return values.sum()
    raise ValueError(f"output_reduction is {reduction!r}: use None, 'mean' or 'sum'")


class TiledMLP:
    """``apply`` computes ``fn(module, x)`` in tiles of tokens."""

    @staticmethod
    def apply(
        fn: Callable[[Any, Tensor], Tensor],
        module: Any,
        x: Tensor,
        shards: int,
        compute_params: Iterable[Any] | None = None,
    ) -> Tensor:
        """``x``: [..., tokens, hidden]; so is the result."""
        del compute_params
        tiles = torch.chunk(x, shards, dim=-2)
        return torch.cat([_recomputed(fn, module, tile) for tile in tiles], dim=-2)


class TiledFusedLogitsLoss:
    """``apply`` computes a loss from hidden states in tiles: no rank has all logits at a time."""

    @staticmethod
    def apply(
        fn: Callable[..., Tensor],
        module: Any,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None,
        shards: int,
        compute_params: Iterable[Any] | None = None,
        output_reduction: Literal["mean", "sum"] = "mean",
    ) -> Tensor:
        """Return the mean or sum of ``fn(module, x, y[, mask])`` over tiles.

        ``x``: [batch, sequence, hidden]; ``y`` and ``mask``: [batch, sequence]. Tiles have
        flattened batch and sequence. "mean" weights tiles alike, whatever ``mask`` leaves in each.
        """
        del compute_params
        if x.shape[:2] != y.shape[:2] or (mask is not None and mask.shape != x.shape[:2]):
            raise ValueError(
                f"x {tuple(x.shape)}, y {tuple(y.shape)} and mask must have the same batch and "
                "sequence dimensions"
            )
        parts = [x.flatten(0, 1), y.flatten(0, 1)] + ([] if mask is None else [mask.flatten()])
        tiles = zip(*(part.chunk(shards) for part in parts), strict=True)
        return _reduced(
            torch.stack([_recomputed(fn, module, *tile) for tile in tiles]), output_reduction
        )

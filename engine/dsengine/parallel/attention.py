"""Attention over a sequence whose parts are on different ranks (Jacobs et al. 2023, Ulysses).

[Note: masks over the whole sequence]
transformers builds masks from a rank's part of the sequence, once per forward. The replaced mask
function returns the padding of the whole sequence instead, [batch, sequence]. Everything else is
known where attention is called: whether it is causal, the window, and the positions, which restart
where a packed sample starts. ``SequenceMasks`` combines them; without padding, window and packing
there is no mask, and the kernel's own causal mode is used.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from dsconfig import nearest_degree
from dsengine.parallel.all_to_all import all_gather, split_heads, split_sequence
from dsengine.parallel.masks import SequenceMasks, attend_in_blocks
from dsengine.topology import world_size
from dsengine.torch_private.tensors import version_of


class SequenceAttention:
    """An attention function of transformers for ranks that each have a part of the sequence.

    ``attention``: the function for whole sequences, of the implementation ``kind`` ("sdpa",
    "flash_attention_2", ...). ``heads`` and ``kv_heads`` of the model are split over ``group``;
    fewer key/value heads than ranks are repeated.
    """

    def __init__(
        self,
        attention: Callable[..., Any],
        kind: str,
        group: dist.ProcessGroup,
        heads: int,
        kv_heads: int,
        *,
        disable_in_eval: bool = False,
    ) -> None:
        ranks = group.size()
        if not _divides_heads(ranks, heads, kv_heads):
            nearest = nearest_degree(
                ranks, max(ranks, world_size()), lambda n: _divides_heads(n, heads, kv_heads)
            )
            raise ValueError(
                f"{heads} attention heads and {kv_heads} key/value heads cannot be divided over "
                f"sequence_parallel_size {ranks}: use {nearest}"
            )
        self.attention = attention
        self.kind = kind
        self.group = group
        self.disable_in_eval = disable_in_eval
        self._positions = _Gathered(group)
        self._masks = SequenceMasks()

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        """Return ([batch, sequence / ranks, heads, head size], attention weights).

        ``query``, ``key``, ``value``: [batch, heads, sequence / ranks, head size].
        ``attention_mask``: padding of the whole sequence, [batch, sequence]; true for tokens.
        """
        if self.disable_in_eval and not module.training:
            return self.attention(module, query, key, value, attention_mask, **options)
        require_positions(options)
        options["position_ids"] = positions = self._positions(options["position_ids"])
        repeats = max(1, self.group.size() // key.shape[1])
        key, value = (each.repeat_interleave(repeats, dim=1) for each in (key, value))
        query, key, value = (split_heads(each, self.group) for each in (query, key, value))
        mask, weights = attention_mask, None
        if self.kind == "sdpa":
            mask = self._masks.get(
                positions,
                attention_mask,
                causal=_is_causal(module, options),
                window=options.get("sliding_window"),
            )
        if isinstance(mask, BlockMask):
            output = attend_in_blocks(query, key, value, mask, **options).transpose(1, 2)
        else:
            with _groups_of(module, query.shape[1] // key.shape[1]):
                output, weights = self.attention(module, query, key, value, mask, **options)
        return split_sequence(output.transpose(1, 2), self.group).transpose(1, 2), weights


def _divides_heads(ranks: int, heads: int, kv_heads: int) -> bool:
    """Return whether each rank gets as many heads; fewer key/value heads than ranks repeat."""
    return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def require_positions(inputs: Mapping[str, Any]) -> None:
    """Raise ValueError if a forward gets no ``position_ids``: models would count from 0 on each
    rank."""
    if inputs.get("position_ids") is None:
        raise ValueError(
            "sequence parallelism requires position_ids in every forward: pass "
            "torch.arange(length), restarting at each packed sample, divided like input_ids"
        )


class _Gathered:
    """Gathers positions along the sequence once per forward: its layers pass the same tensor."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._last: tuple[Tensor, int, Tensor] | None = None

    def __call__(self, part: Tensor) -> Tensor:
        if self._last is None or self._last[0] is not part or self._last[1] != version_of(part):
            self._last = (part, version_of(part), all_gather(part, self._group))
        return self._last[2]


def _is_causal(module: nn.Module, options: dict[str, Any]) -> bool:
    chosen = options.get("is_causal")
    return bool(getattr(module, "is_causal", True) if chosen is None else chosen)


@contextmanager
def _groups_of(module: Any, query_per_key: int) -> Iterator[None]:
    """Set the query heads per key head, which kernels read from ``module``, inside."""
    before = getattr(module, "num_key_value_groups", None)
    if before is None or before == query_per_key:
        yield
        return
    module.num_key_value_groups = query_per_key
    try:
        yield
    finally:
        module.num_key_value_groups = before

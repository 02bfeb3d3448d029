"""Attention over a sequence whose parts are on different ranks (Jacobs et al. 2023, Ulysses).

[Note: masks over the whole sequence]
transformers builds masks from a rank's part of the sequence, once per forward. The replaced mask
function returns the padding of the whole sequence instead, [batch, sequence]. Everything else is
known where attention is called: whether it is causal, the window, and the positions, which restart
where a packed sample starts. ``SequenceMask`` combines them; without padding, window and packing
there is no mask, and the kernel's own causal mode is used.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsconfig import nearest_degree
from dsengine.parallel.all_to_all import all_gather, split_heads, split_sequence
from dsengine.topology import world_size
from dsengine.torch_private.tensors import version_of

LONGEST_DENSE = 16_384
"""Longest sequence with a dense mask, of sequence x sequence booleans (256 MiB)."""


KINDS_OF_LAYERS = 2
"""Masks that a forward needs at a time: with and without a window."""


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
        self._mask = SequenceMask()

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
        if self.kind == "sdpa":
            attention_mask = self._mask.dense(
                positions,
                attention_mask,
                causal=_is_causal(module, options),
                window=options.get("sliding_window"),
            )
        with _groups_of(module, query.shape[1] // key.shape[1]):
            output, weights = self.attention(module, query, key, value, attention_mask, **options)
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


class SequenceMask:
    """Builds dense masks, and keeps the last few: the layers of a forward share them."""

    def __init__(self) -> None:
        self._built: deque[tuple[Tensor, Tensor | None, bool, int | None, Tensor | None]]
        self._built = deque(maxlen=KINDS_OF_LAYERS)

    def dense(
        self, positions: Tensor, padding: Tensor | None, *, causal: bool, window: int | None
    ) -> Tensor | None:
        """Return [batch, 1, sequence, sequence], true where a token attends to another.

        ``positions``: [1 or batch, sequence]; ``padding``: [batch, sequence], false for padding.
        None if the kernel's own causal mode, or no mask, does the same. Raises ValueError for
        sequences above ``LONGEST_DENSE``.
        """
        for at, of, is_causal, within, mask in self._built:
            if at is positions and of is padding and (is_causal, within) == (causal, window):
                return mask
        mask = _dense(positions, padding, causal, window)
        self._built.append((positions, padding, causal, window, mask))
        return mask


def _dense(
    positions: Tensor, padding: Tensor | None, causal: bool, window: int | None
) -> Tensor | None:
    documents = _documents(positions) if padding is None else None
    length = positions.shape[1]
    window = None if window is None or window >= length else window
    if padding is not None and bool(padding.all()):
        padding = None
    if documents is None and padding is None and window is None:
        return None
    if length > LONGEST_DENSE:
        raise ValueError(
            f"sdpa needs a dense mask for windows, packed samples and padding, which is not "
            f"built for {length} tokens (at most {LONGEST_DENSE}): use flash_attention_2"
        )
    token = torch.arange(length, device=positions.device)
    distance = token[:, None] - token
    allowed = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        allowed &= distance >= 0
    if window is not None:
        allowed &= distance.abs() < window
    mask = allowed[None]
    if documents is not None:
        mask = mask & (documents[:, :, None] == documents[:, None, :])
    if padding is not None:
        mask = mask & padding[:, None, :].bool()
    return mask[:, None]


def _documents(positions: Tensor) -> Tensor | None:
    """Return the number of each token's packed sample, [batch, sequence]; None if there is one."""
    starts = torch.diff(positions, dim=1, prepend=positions[:, :1] - 1) != 1
    return starts.cumsum(1) if bool(starts.any()) else None


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

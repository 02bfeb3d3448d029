"""Which tokens attend to which others, over a whole sequence: dense, or in blocks.

[Note: masks of long sequences]
A dense mask has sequence x sequence booleans. Above ``tiles.LONGEST_DENSE_MASK`` tokens the same
rule is given to ``flex_attention`` instead, with the blocks of 128 x 128 scores in which it holds
for some or all pairs. These follow from the first and last token of each block, so nothing of the
size of the scores is made.
"""

from collections import deque
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dsconfig import tiles

KINDS_OF_LAYERS = 2
"""Masks that a forward needs at a time: with and without a window."""
BLOCK = 128


class Rule(NamedTuple):
    """Whether a token attends to another: ``rule(sample, head, query, key)``, as a mask function of
    ``flex_attention``.

    ``documents``: the number of each token's packed sample, [1 or batch, sequence]; ``padding``:
    [batch, sequence], false for padding.
    """

    causal: bool
    window: int | None
    documents: Tensor | None
    padding: Tensor | None

    def __call__(self, sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del head
        allowed = query >= key if self.causal else key >= 0
        if self.window is not None:
            allowed = allowed & (query < key + self.window) & (key < query + self.window)
        if self.documents is not None:
            sample_of = sample if len(self.documents) > 1 else torch.zeros_like(sample)
            own = self.documents[sample_of, query]
            allowed = allowed & (own == self.documents[sample_of, key])
        if self.padding is not None:
            allowed = allowed & self.padding[sample, key]
        return allowed

    @property
    def samples(self) -> int:
        """Return the number of samples with masks of their own; 1 if all have the same."""
        return max(len(each) for each in (self.documents, self.padding, (0,)) if each is not None)

    def dense(self, length: int, device: torch.device) -> Tensor:
        """Return [1 or batch, 1, sequence, sequence], true where a token attends to another."""
        token = torch.arange(length, device=device)
        sample = torch.arange(self.samples, device=device)[:, None, None, None]
        allowed = self(sample, sample, token[:, None], token)
        return allowed.expand(self.samples, 1, length, length)

    def blocks(self, length: int, device: torch.device, size: int = BLOCK) -> BlockMask:
        """Return the same for ``flex_attention``, in blocks of ``size`` x ``size`` scores."""
        first = torch.arange(0, length, size, device=device)
        last = (first + size).clamp(max=length) - 1
        least, most = first[:, None] - last, last[:, None] - first
        """Of the distances from a key to a query in each block."""
        whole = last - first == size - 1
        some = torch.ones_like(least, dtype=torch.bool)[None]
        every = (whole[:, None] & whole)[None]
        if self.causal:
            some, every = some & (most >= 0), every & (least >= 0)
        if self.window is not None:
            some = some & (least < self.window) & (most > -self.window)
            every = every & (most < self.window) & (least > -self.window)
        if self.documents is not None:  # their numbers never decrease
            low, high = self.documents[:, first], self.documents[:, last]
            some = some & (low[:, :, None] <= high[:, None]) & (low[:, None] <= high[:, :, None])
            every = every & (low[:, :, None] == high[:, None]) & (high[:, :, None] == low[:, None])
        if self.padding is not None:
            missing = len(first) * size - length
            tokens = torch.nn.functional.pad(self.padding, (0, missing)).unflatten(1, (-1, size))
            some, every = some & tokens.any(2)[:, None], every & tokens.all(2)[:, None]
        return BlockMask.from_kv_blocks(
            *_ordered(some & ~every),
            *_ordered(every),
            BLOCK_SIZE=size,
            mask_mod=self,
            seq_lengths=(length, length),
        )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of chosen key blocks by query block, and the blocks, chosen ones first."""
    chosen = blocks[:, None].to(torch.int32)
    order = torch.argsort(chosen, dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)


class SequenceMasks:
    """Builds masks, and keeps the last few: the layers of a forward share them."""

    def __init__(self) -> None:
        self._built: deque[tuple[tuple[Any, ...], Tensor | BlockMask | None]]
        self._built = deque(maxlen=KINDS_OF_LAYERS)

    def get(
        self, positions: Tensor, padding: Tensor | None, *, causal: bool, window: int | None
    ) -> Tensor | BlockMask | None:
        """Return the mask of a sequence, in blocks above ``tiles.LONGEST_DENSE_MASK`` tokens.

        ``positions``: [1 or batch, sequence]; ``padding``: [batch, sequence], false for padding.
        None if the kernel's own causal mode, or no mask, does the same.
        """
        for (at, of, *kind), mask in self._built:
            if at is positions and of is padding and kind == [causal, window]:
                return mask
        if self._built and self._built[-1][0][0] is not positions:
            self._built.clear()  # masks of the last forward, before new ones are built
        mask = _built(positions, padding, causal, window)
        self._built.append(((positions, padding, causal, window), mask))
        return mask


def _built(
    positions: Tensor, padding: Tensor | None, causal: bool, window: int | None
) -> Tensor | BlockMask | None:
    documents = _documents(positions) if padding is None else None
    length, device = positions.shape[1], positions.device
    window = None if window is None or window >= length else window
    if padding is not None and bool(padding.all()):
        padding = None
    if documents is None and padding is None and window is None:
        return None
    rule = Rule(causal, window, documents, padding)
    if length > tiles.LONGEST_DENSE_MASK:
        return rule.blocks(length, device)
    return rule.dense(length, device)


def _documents(positions: Tensor) -> Tensor | None:
    """Return the number of each token's packed sample, [batch, sequence]; None if there is one."""
    starts = torch.diff(positions, dim=1, prepend=positions[:, :1] - 1) != 1
    return starts.cumsum(1) if bool(starts.any()) else None


def attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, blocks: BlockMask, **options: Any
) -> Tensor:
    """Return attention, [batch, heads, sequence, head size], with the ``scaling`` of transformers.

    ``query``, ``key``, ``value``: [batch, heads or key heads, sequence, head size]. Raises
    ValueError for dropout and position biases, and for training on the CPU.
    """
    unsupported = [
        name.replace("_", " ")
        for name in ("dropout", "position_bias")
        if isinstance(options.get(name), Tensor) or options.get(name)
    ]
    if query.device.type == "cpu" and query.requires_grad:
        unsupported.append("backward on the CPU")
    if unsupported:
        raise ValueError(
            "windows, packed samples and padding in sequences above "
            f"{tiles.LONGEST_DENSE_MASK} tokens use flex_attention, which has no "
            f"{' and no '.join(unsupported)}: use flash_attention_2, or shorter sequences"
        )
    output: Any = _kernel(query.device.type)(
        query,
        key,
        value,
        block_mask=blocks,
        scale=options.get("scaling"),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output


@cache
def _kernel(device_type: str) -> Any:
    """Return ``flex_attention``, fused on a GPU."""
    return flex_attention if device_type == "cpu" else torch.compile(flex_attention)

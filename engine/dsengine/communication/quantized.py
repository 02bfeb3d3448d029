"""Gathers of 8-bit weights and reductions of 4-bit gradients, as in ZeRO++ (arXiv:2306.10209).

Each block of ``tiles.QUANTIZED_BLOCK`` numbers is divided by its scale, the largest magnitude over
127 or 7, and rounded to the nearest integer: an element changes by at most half a scale. A message
is bytes: the integers of all blocks, then their fp32 scales. Shards and sums are not quantized.
DeepSpeed sends gradients within nodes first; here each rank sends its part to its owner directly.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from dsconfig import tiles
from dsengine.torch_private.groups import all_gather_flat

BLOCK = tiles.QUANTIZED_BLOCK


def quantize(values: Tensor, bits: int) -> Tensor:
    """Return the message of floating-point ``values`` (n,): ``tiles.quantized_bytes`` uint8.

    ``bits``: 4 or 8. A block with an infinity or NaN has no finite value afterwards.
    """
    limit = 2 ** (bits - 1) - 1
    blocks = F.pad(values.float(), (0, -values.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True) / limit
    integers = (blocks / torch.where(scales == 0, 1.0, scales)).round_().nan_to_num_(0.0)
    packed = integers.clamp_(-limit, limit).to(torch.int8).view(torch.uint8).flatten()
    if bits == 4:
        packed = (packed[::2] & 0xF) | (packed[1::2] << 4)
    return torch.cat([packed, scales.flatten().view(torch.uint8)])


def dequantize(message: Tensor, bits: int) -> Tensor:
    """Return the fp32 values of a message, padded to full blocks."""
    count = message.numel() // tiles.quantized_bytes(BLOCK, bits)
    packed, scales = message.split([count * BLOCK * bits // 8, count * 4])
    if bits == 4:
        # The upper half byte of an int8 keeps its sign when it is shifted down.
        signed = packed.view(torch.int8)
        packed = torch.stack([(signed << 4) >> 4, signed >> 4], dim=1).view(torch.uint8)
    integers = packed.reshape(-1).view(torch.int8).view(count, BLOCK)
    return (integers * scales.clone().view(torch.float32).view(count, 1)).flatten()


class Part(NamedTuple):
    """A parameter's part of a unit's shard, with blocks of its own, or sent as it is."""

    elements: int
    is_quantized: bool


class QuantizedAllGather:
    """The all-gather that ``fully_shard`` calls; fills the output on the calling stream.

    ``parts``: of this rank's shard of the unit, at least one of them quantized. Other sizes, as of
    hpZ's second gather within a node, and integers are gathered as they are.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._elements = sum(part.elements for part in parts)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        del async_op
        own = input_tensor
        if not own.is_floating_point() or own.numel() != self._elements:
            all_gather_flat(output_tensor, own.clone(), group=group)
            return None
        message = self._message(own)
        messages = message.new_empty(group.size() * message.numel())
        all_gather_flat(messages, message, group=group)
        for shard, received in zip(
            output_tensor.view(group.size(), -1), messages.view(group.size(), -1), strict=True
        ):
            self._fill(shard, received)
        return None

    def _message(self, own: Tensor) -> Tensor:
        parts = own.split([part.elements for part in self._parts])
        given = list(zip(parts, self._parts, strict=True))
        padded = [F.pad(each, (0, -len(each) % BLOCK)) for each, part in given if part.is_quantized]
        others = [each.view(torch.uint8) for each, part in given if not part.is_quantized]
        return torch.cat([quantize(torch.cat(padded), tiles.GATHERED_BITS), *others])

    def _fill(self, shard: Tensor, message: Tensor) -> None:
        blocks = sum(-(-part.elements // BLOCK) for part in self._parts if part.is_quantized)
        size = tiles.quantized_bytes(blocks * BLOCK, tiles.GATHERED_BITS)
        values = dequantize(message[:size], tiles.GATHERED_BITS)
        others = message[size:].view(shard.dtype)
        targets = shard.split([part.elements for part in self._parts])
        for part, target in zip(self._parts, targets, strict=True):
            if part.is_quantized:
                target.copy_(values[: part.elements])
                values = values[part.elements + -part.elements % BLOCK :]
            else:
                target.copy_(others[: part.elements])
                others = others[part.elements :]


class QuantizedReduceScatter:
    """The reduce-scatter that ``fully_shard`` calls: an all-to-all, then a sum times ``factor``.

    Blocks are those of the unit: one at the end of a gradient contains the beginning of the next.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(math.prod(size), dtype=dtype, device=device).view(*size)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        del op, async_op
        shards = input_tensor.view(group.size(), -1)
        sent = torch.cat([quantize(shard, tiles.REDUCED_BITS) for shard in shards])
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        total = torch.zeros_like(output_tensor, dtype=torch.float32)
        for message in received.view(group.size(), -1):
            values = dequantize(message, tiles.REDUCED_BITS)[: total.numel()]
            total.view(-1).add_(values, alpha=self._factor)
        output_tensor.copy_(total)
        return None

"""Attention of a script over a sequence whose parts are on different ranks."""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from dsengine.parallel.all_to_all import split_heads, split_sequence


class DistributedAttention(nn.Module):
    """Calls ``local_attention(query, key, value, ...)`` with all tokens and a part of the heads.

    Inputs have the heads in dimension ``scatter_idx`` and this rank's part of the sequence in
    ``gather_idx``; so has the result. Heads of keys and values are a multiple of the ranks.
    ``sp_stream`` and ``num_kv_heads`` are DeepSpeed's and not needed.
    """

    def __init__(
        self,
        local_attention: Any,
        sequence_process_group: dist.ProcessGroup,
        scatter_idx: int = 2,
        gather_idx: int = 0,
        sp_stream: Any = None,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        del sp_stream, num_kv_heads
        self.local_attn = local_attention
        self.spg = sequence_process_group
        self.scatter_idx = scatter_idx
        self.gather_idx = gather_idx

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch_dim_idx: int | None = None,
        rotary_pos_emb: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Return the attention's result for this rank's part of the sequence."""
        if rotary_pos_emb is not None:
            raise ValueError("rotary_pos_emb: apply it to query and key before the attention")
        ranks = self.spg.size()
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if tensor.shape[self.scatter_idx] % ranks:
                raise ValueError(
                    f"{name} has {tensor.shape[self.scatter_idx]} heads, which cannot be divided "
                    f"over {ranks} sequence-parallel ranks"
                )
        order = self._order()
        split = [_permuted(split_heads, tensor, order, self.spg) for tensor in (query, key, value)]
        output = self.local_attn(*split, *args, **kwargs)
        # Attention often returns [.., .., heads x head size].
        is_flat = output.dim() == 3
        if is_flat:
            output = output.unflatten(-1, (-1, value.shape[-1]))
        output = _permuted(split_sequence, output, order, self.spg)
        return output.flatten(-2) if is_flat else output

    def _order(self) -> tuple[int, int, int, int]:
        """Return the dimensions of batch, heads, sequence and head size."""
        (batch,) = {0, 1, 2} - {self.scatter_idx, self.gather_idx}
        return batch, self.scatter_idx, self.gather_idx, 3


def _permuted(exchange: Any, tensor: Tensor, order: tuple[int, ...], group: Any) -> Tensor:
    """Call ``exchange`` on [batch, heads, sequence, head size]; return the order of ``tensor``."""
    back = [order.index(dimension) for dimension in range(4)]
    return exchange(tensor.permute(*order), group).permute(*back)

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
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from dsconfig.features.table import FEATURES
from dsengine.parallel.all_to_all import all_gather, split_heads, split_sequence
from dsengine.parallel.masks import SequenceMasks, attend_in_blocks
from dsengine.torch_private.tensors import version_of

OF_ONE_RANK = ("position_bias", "s_aux", "cu_seq_lens_q", "cu_seq_lens_k")
"""Tensors of heads or tokens that transformers' attention uses besides the mask and positions."""


@dataclass(eq=False)
class SequenceAttention:
    """An attention function of transformers for ranks that each have a part of the sequence.

    ``attention``: the function for whole sequences, of the implementation ``kind`` ("sdpa",
    "flash_attention_2", ...). Heads are divided over ``group``; fewer key/value heads than ranks
    are repeated. ``is_whole``: whether a module has whole sequences; they are left alone.
    """

    attention: Callable[..., Any]
    kind: str
    group: dist.ProcessGroup
    is_whole: Callable[[nn.Module], bool]
    disable_in_eval: bool = False
    _served: set[nn.Module] | None = field(init=False, default=None)
    """Modules that have called it, while these are observed."""
    _masks: SequenceMasks = field(init=False, default_factory=SequenceMasks)

    def __post_init__(self) -> None:
        self.whole_positions = _Gathered(self.group)

    def observe(self) -> set[nn.Module]:
        """Return the set to which modules that call it are added, until ``end_observation``."""
        self._served = set()
        return self._served

    def end_observation(self) -> None:
        self._served = None

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
        if self.is_whole(module) or (self.disable_in_eval and not module.training):
            return self.attention(module, query, key, value, attention_mask, **options)
        if self._served is not None:
            self._served.add(module)
        if key.shape[2] != query.shape[2]:
            raise ValueError(
                f"{type(module).__name__} attends from {query.shape[2]} tokens of a part to "
                f"{key.shape[2]}: sequence parallelism divides neither cross-attention nor "
                "forwards with a cache: use sequence_parallel_size 1"
            )
        refuse_undivided(module, attention_mask, options, self.group.size() * query.shape[2])
        options["position_ids"] = positions = self.whole_positions(options["position_ids"])
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
        part = split_sequence(output.transpose(1, 2), self.group).transpose(1, 2)
        return part.contiguous(), weights


def refuse_undivided(
    module: nn.Module, mask: Tensor | None, options: Mapping[str, Any], length: int
) -> None:
    """Raise ValueError for what a model passes to its attention in a form for one rank.

    ``mask``: what the model made of the padding of the whole sequence, of ``length`` tokens.
    """
    name = type(module).__name__
    if options.get("position_ids") is None:
        raise ValueError(
            f"sequence parallelism requires position_ids in every attention layer, but {name} gets "
            "none: pass them to the model's forward; if you already do, the model does not hand "
            "them on: use sequence_parallel_size 1"
        )
    values = [option for option in OF_ONE_RANK if options.get(option) is not None]
    if mask is not None and (mask.dtype is not torch.bool or mask.shape[1:] != (length,)):
        values.append("a mask of its own")
    if values:
        raise ValueError(
            f"{name} passes {' and '.join(values)} to its attention: "
            f"{FEATURES['other_attention_inputs'].text}"
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

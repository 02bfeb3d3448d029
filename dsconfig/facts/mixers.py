"""Layer kinds of a model's blocks, from a config.json: attention or a linear-time mixer.

Families encode the block order in many ways, taken from the config classes of transformers 5.23 and
the configs of published models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, cast

from dsconfig.facts import mixtures


class Mixing(StrEnum):
    """How a layer mixes tokens."""

    ATTENTION = "attention"
    DELTA = "gated delta net"
    """Yang et al. 2024, arXiv:2412.06464."""
    KIMI_DELTA = "Kimi delta attention"
    MAMBA = "Mamba"
    """Gu and Dao 2023, arXiv:2312.00752."""
    MAMBA_2 = "Mamba-2"
    """Dao and Gu 2024, arXiv:2405.21060."""
    CONVOLUTION = "short convolution"
    LIGHTNING = "lightning attention"
    RECURRENT = "RG-LRU"
    """De et al. 2024, arXiv:2402.19427."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """A mixing layer with its sizes; those of attention are in the architecture.

    The inner width is ``heads`` x ``head``. ``key_heads`` x ``key`` is the width of keys and of
    queries; in Mamba-2, groups and state size.
    """

    kind: Mixing = Mixing.ATTENTION
    heads: int = 0
    head: int = 0
    key_heads: int = 0
    key: int = 0
    taps: int = 0
    """Kernel size of the short convolution along the sequence."""
    rank: int = 0
    """Rank of low-rank projections: Mamba's time step, the gates of Kimi's delta attention."""
    is_normed: bool = True
    """Whether the output has a norm of the mixer's own."""
    is_biased: bool = False
    """Whether the projections have biases."""
    is_convolution_biased: bool = True

    @property
    def inner(self) -> int:
        return self.heads * self.head

    @property
    def convolved(self) -> int:
        """Channels of the convolution: values with queries and keys, or with Mamba-2's B and C."""
        beside = (Mixing.DELTA, Mixing.KIMI_DELTA, Mixing.MAMBA_2)
        return self.inner + (2 * self.key_heads * self.key if self.kind in beside else 0)

    @property
    def scan_flops(self) -> float:
        """Forward FLOPs per token, without those of its matrix products.

        Counted as in Megatron-LM (``num_floating_point_operations``): 7 per channel and state of
        Mamba, 8 per element of a delta rule's state.
        """
        if self.kind in (Mixing.MAMBA, Mixing.MAMBA_2):
            return 7.0 * self.inner * self.key
        if self.kind in (Mixing.DELTA, Mixing.KIMI_DELTA, Mixing.LIGHTNING):
            return 8.0 * self.inner * self.key
        return 0.0


ATTENTION = Mixer()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """One kind of block.

    ``mixers`` run in parallel (Falcon-H1) or in sequence (LongCat); ``dense`` is the number of
    MLPs, next to experts if ``has_experts``.
    """

    mixers: tuple[Mixer, ...] = (ATTENTION,)
    dense: int = 1
    has_experts: bool = False

    @property
    def attentions(self) -> int:
        return sum(mixer.kind is Mixing.ATTENTION for mixer in self.mixers)


_ORDERS = ("layers_block_type", "layer_types", "block_types")
_ATTENTION_WORDS = ("attention", "full", "swa", "global", "local", "hybrid")
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of Nemotron-H's ``hybrid_override_pattern``."""
OF_MAMBA = frozenset({"mamba", "mamba2", "falcon_mamba"})
_EVERY_FOURTH = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid")


def depth_of(config: Mapping[str, Any]) -> int | None:
    """Return the number of blocks that an explicit order lists."""
    for key, kind in (("layers_block_type", list), ("hybrid_override_pattern", str)):
        order = config.get(key)
        if isinstance(order, kind) and order:
            return len(cast("Sequence[object]", order))
    return None


def blocks_of(
    config: Mapping[str, Any], layers: int, hidden: int, has_experts: Callable[[int], bool]
) -> tuple[BlockKind, ...]:
    """Return the kind of each block; empty if each has attention, then one MLP or experts.

    ``has_experts`` returns whether the block at an index has experts instead of an MLP.
    """
    family = config.get("model_type")
    if family == "longcat_flash":  # two rounds of attention and MLP, experts in parallel to both
        return (BlockKind(mixers=(ATTENTION,) * 2, dense=2, has_experts=True),) * layers
    without = _without_scores(config, hidden)
    if without is None:
        return ()
    if family in OF_MAMBA:
        return (BlockKind(mixers=(without,), dense=0),) * layers
    if family == "falcon_h1":
        return (BlockKind(mixers=(without, ATTENTION)),) * layers
    order = _order(config, layers)
    alone = any(word in ("mlp", "moe") for word in order)  # each block has a single layer
    return tuple(
        _block(word, without, alone=alone, mixed=has_experts(place))
        for place, word in enumerate(order)
    )


def unknown_words(config: Mapping[str, Any], hidden: int) -> tuple[str, ...]:
    """Return block kinds in the config that are not attention and have unknown sizes."""
    if _without_scores(config, hidden) is not None:
        return ()
    orders = (config.get(key) for key in _ORDERS)
    named = (cast("list[object]", order) for order in orders if isinstance(order, list))
    words = dict.fromkeys(str(word) for order in named for word in order)
    return tuple(word for word in words if not _is_attention(word))


def _block(word: str, without: Mixer, *, alone: bool, mixed: bool) -> BlockKind:
    mixer = ATTENTION if _is_attention(word) else without
    if not alone:
        return BlockKind(mixers=(mixer,), dense=int(not mixed), has_experts=mixed)
    if word in ("mlp", "moe"):
        return BlockKind(mixers=(), dense=int(word == "mlp"), has_experts=word == "moe")
    return BlockKind(mixers=(mixer,), dense=0)


def _is_attention(word: str) -> bool:
    return "linear" not in word and any(part in word for part in _ATTENTION_WORDS)


def _order(config: Mapping[str, Any], layers: int) -> list[str]:
    """Return a word for each block."""
    for key in _ORDERS:
        named = config.get(key)
        if isinstance(named, list) and named:
            words = [str(word) for word in cast("list[object]", named)]
            return (words * layers)[:layers]  # Griffin repeats its pattern
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_LETTERS.get(letter, letter) for letter in pattern]
    is_full = _full_attention(config)
    return ["attention" if is_full(place) else "linear" for place in range(layers)]


def _full_attention(config: Mapping[str, Any]) -> Callable[[int], bool]:
    """Return a predicate for blocks with attention, if no order is written out."""
    family = config.get("model_type")
    named = config.get("linear_attn_config")
    if isinstance(named, dict):
        counted_from_one = _places(cast("dict[str, Any]", named).get("full_attn_layers"))
        return lambda place: place + 1 in counted_from_one
    for key in ("attn_layer_indices", "full_attn_idxs"):
        if key in config or (key == "attn_layer_indices" and family == "bamba"):
            places = _places(config.get(key))
            every = key == "full_attn_idxs" and config[key] is None
            return lambda place: every or place in places
    kinds = config.get("attn_type_list")
    if isinstance(kinds, list):
        ones = _places([at for at, kind in enumerate(cast("list[object]", kinds)) if kind == 1])
        return lambda place: place in ones
    period, offset = config.get("attn_layer_period"), config.get("attn_layer_offset") or 0
    if type(period) is int and period > 0:
        return lambda place: place % period == offset
    every_one = config.get("full_attention_interval") or config.get("layer_group_size")
    if every_one is None and family in _EVERY_FOURTH:
        every_one = 4
    if type(every_one) is int and every_one > 0:
        return lambda place: (place + 1) % every_one == 0
    if family == "kimi_linear":
        return lambda place: place > 0 and place % 4 == 0
    if family == "minimax":
        return lambda place: place % 2 == 0
    if family == "recurrent_gemma":
        return lambda place: place % 3 == 2
    return lambda _: family in ("lfm2", "lfm2_moe")


def _places(value: object) -> frozenset[int]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return frozenset(item for item in items if type(item) is int)


def _without_scores(config: Mapping[str, Any], hidden: int) -> Mixer | None:
    """Return the mixer used where a block has no attention, or None."""
    family = config.get("model_type")
    if family in ("kimi_linear", "bailing_hybrid"):
        return _kimi_delta(config)
    if "linear_num_value_heads" in config:
        return Mixer(
            kind=Mixing.DELTA,
            heads=_size(config, "linear_num_value_heads"),
            head=_size(config, "linear_value_head_dim"),
            key_heads=_size(config, "linear_num_key_heads"),
            key=_size(config, "linear_key_head_dim"),
            taps=_size(config, "linear_conv_kernel_dim", "conv_kernel_size") or 4,
            is_convolution_biased=False,
        )
    if _size(config, "lru_width"):
        heads = _size(config, "num_attention_heads") or 1
        width = _size(config, "lru_width")
        taps = _size(config, "conv1d_width") or 4
        return Mixer(kind=Mixing.RECURRENT, heads=heads, head=width // heads, taps=taps)
    if _size(config, "conv_L_cache"):
        return Mixer(
            kind=Mixing.CONVOLUTION,
            heads=1,
            head=hidden,
            taps=_size(config, "conv_L_cache"),
            is_biased=bool(config.get("conv_bias")),
            is_convolution_biased=bool(config.get("conv_bias")),
        )
    if family == "minimax":
        heads = _size(config, "num_attention_heads") or 1
        head = _size(config, "head_dim") or hidden // heads
        kind = Mixing.LIGHTNING
        return Mixer(kind=kind, heads=heads, head=head, key_heads=heads, key=head)
    return _mamba(config, hidden)


def _kimi_delta(config: Mapping[str, Any]) -> Mixer:
    """Return Kimi's mixer; the rank of its gates is a head's width, or none (Ring, Bailing)."""
    named = config.get("linear_attn_config")
    sizes: Mapping[str, Any] = cast("dict[str, Any]", named) if isinstance(named, dict) else {}
    head = _size(sizes, "head_dim") or _size(config, "linear_head_dim") or 128
    heads = _size(sizes, "num_heads") or _size(config, "linear_num_heads") or 32
    taps = _size(sizes, "short_conv_kernel_size") or _size(config, "linear_conv_kernel_dim") or 4
    return Mixer(
        kind=Mixing.KIMI_DELTA,
        heads=heads,
        head=head,
        key_heads=heads,
        key=head,
        taps=taps,
        rank=head if config.get("model_type") == "kimi_linear" else 0,
        is_convolution_biased=False,
    )


def _mamba(config: Mapping[str, Any], hidden: int) -> Mixer | None:
    state = _size(config, "mamba_d_state", "ssm_state_size", "state_size", "d_state")
    if not state:
        return None
    family = config.get("model_type")
    expanded = (_size(config, "mamba_expand", "expand") or 2) * hidden
    inner = _size(config, "mamba_d_ssm") or expanded
    common = Mixer(
        key=state,
        taps=_size(config, "mamba_d_conv", "conv_kernel") or 4,
        is_biased=bool(_first(config, ("mamba_proj_bias", "use_bias"), default=False)),
        is_convolution_biased=bool(
            _first(config, ("mamba_conv_bias", "use_conv_bias"), default=True)
        ),
    )
    heads = _size(config, "mamba_n_heads", "mamba_num_heads")
    if not heads and family == "mamba2":
        heads = _size(config, "num_heads") or 128
    if not heads:
        rank = _size(config, "mamba_dt_rank", "time_step_rank") or -(-hidden // 16)
        normed = family == "jamba"
        return replace(common, kind=Mixing.MAMBA, heads=1, head=inner, rank=rank, is_normed=normed)
    written = _size(config, "mamba_head_dim", "mamba_d_head")
    if not written and family == "mamba2":
        written = _size(config, "head_dim")
    return replace(
        common,
        kind=Mixing.MAMBA_2,
        heads=heads,
        head=written or inner // heads,
        key_heads=_size(config, "mamba_n_groups", "n_groups") or 1,
        is_normed=bool(config.get("mamba_rms_norm", family != "falcon_h1")),
    )


def _first(config: Mapping[str, Any], keys: tuple[str, ...], *, default: bool) -> object:
    return next((config[key] for key in keys if config.get(key) is not None), default)


def _size(config: Mapping[str, Any], *keys: str) -> int:
    """Return the first positive integer under the keys, or 0. Raises FactError like ``count``."""
    return mixtures.count(config, keys) or 0

"""Bytes per token that non-attention layers keep for backward, with ``w`` bytes an element.

Counted for the training kernels if there are any: flash-linear-attention, mamba-ssm and
causal-conv1d, by what their autograd functions save. Without these packages transformers falls back
to PyTorch code, which keeps several times as much (counted on a CPU: 2.7 times in a layer of
Qwen3.5, 9 times and more in one of Bamba).
"""

from collections.abc import Callable, Mapping

from dsconfig.facts.mixers import BlockKind, Mixer, Mixing

CHUNK = 64
"""Tokens of a chunk in flash-linear-attention; each token keeps a row of this length."""
SCAN_CHUNK = 2048
"""Tokens between two states that mamba-ssm's selective scan keeps."""
LIGHTNING_BLOCK = 256
"""Tokens of a block of MiniMax's lightning attention, inside which scores are materialized."""


def mixer_bytes(mixer: Mixer, width: int) -> float:
    return _KEPT[mixer.kind](mixer, width)


def bytes_without_scores(block: BlockKind, width: int) -> float:
    """Return the bytes of all mixers of a block that are not attention."""
    return sum(mixer_bytes(each, width) for each in block.mixers if each.kind in _KEPT)


def _delta(mixer: Mixer, width: int) -> float:
    """``ChunkGatedDeltaRuleFunction``: normalized queries and keys, values, both gates, the
    triangular rows; before it the convolution's input, after it output, gate and their norm."""
    keys, values = mixer.key_heads * mixer.key, mixer.inner
    gates = 8 * 4 * mixer.heads + 2 * 4 * mixer.key_heads  # fp32: decay on its way, inverse norms
    rows = width * (CHUNK + 2) * mixer.heads
    return width * (mixer.convolved + 2 * keys + 4 * values) + gates + rows


def _kimi_delta(mixer: Mixer, width: int) -> float:
    """The same with a decay per channel, kept in fp32 and in the input dtype, and
    two sets of rows."""
    keys = mixer.key_heads * mixer.key
    decay = (4 + width) * keys + width * 2 * mixer.rank
    return _delta(mixer, width) + decay + width * CHUNK * mixer.heads


def _mamba(mixer: Mixer, width: int) -> float:
    """``MambaInnerFn``: the two halves of the projection, the scan's output, B, C and the low rank;
    convolution and time step are recomputed. With norms between them (Jamba) the steps are
    separate: the convolution's output, time step, scan's output and gated output are kept too."""
    copies = 3 + 3 * mixer.is_normed
    states = 4 * 2 * mixer.key * mixer.inner / SCAN_CHUNK
    return width * (copies * mixer.inner + mixer.rank + 4 * mixer.key) + states


def _mamba_2(mixer: Mixer, width: int) -> float:
    """``MambaSplitConv1dScanCombinedFn``: the full projection, the scan's output, its norm."""
    projected = mixer.inner + mixer.convolved + mixer.heads
    return width * (projected + mixer.inner) + 4


def _convolution(mixer: Mixer, width: int) -> float:
    """Three projections, the first product, the convolution's output, the second product."""
    return 6.0 * width * mixer.inner


def _lightning(mixer: Mixer, width: int) -> float:
    """PyTorch code of transformers, counted in it: copies of queries, keys and values with their
    activations and decays, and the scores inside a block."""
    return width * (14.0 * mixer.inner + LIGHTNING_BLOCK * mixer.heads)


def _recurrent(mixer: Mixer, width: int) -> float:
    """PyTorch code of transformers, counted in it: the gates and the recurrence are fp32."""
    return 19.0 * width * mixer.inner


_KEPT: Mapping[Mixing, Callable[[Mixer, int], float]] = {
    Mixing.DELTA: _delta,
    Mixing.KIMI_DELTA: _kimi_delta,
    Mixing.MAMBA: _mamba,
    Mixing.MAMBA_2: _mamba_2,
    Mixing.CONVOLUTION: _convolution,
    Mixing.LIGHTNING: _lightning,
    Mixing.RECURRENT: _recurrent,
}

KERNELS: Mapping[Mixing, str] = {
    Mixing.DELTA: "flash-linear-attention",
    Mixing.KIMI_DELTA: "flash-linear-attention",
    Mixing.MAMBA: "mamba-ssm",
    Mixing.MAMBA_2: "mamba-ssm",
}
"""The package whose kernels are counted; without it much more is kept."""

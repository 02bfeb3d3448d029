"""Tensors of linear-time mixers, with the names of each family."""

from dsconfig.facts.architectures.parts import Part, linear, rms_norm
from dsconfig.facts.mixers import Mixer, Mixing
from dsconfig.facts.model import TensorFact


def mixer_part(mixer: Mixer, hidden: int, family: str, name: str, prefix: str) -> Part:
    """Return the module of a mixer, called ``name`` in its block."""
    type_, build = _KINDS[mixer.kind]
    own, children = build(mixer, hidden, family)
    return Part(name, f"{prefix}{type_}", own, children)


_Parts = tuple[tuple[TensorFact, ...], tuple[Part, ...]]


def _short_convolution(mixer: Mixer, name: str = "conv1d") -> Part:
    weight = TensorFact("weight", (mixer.convolved, 1, mixer.taps))
    bias = (TensorFact("bias", (mixer.convolved,)),) if mixer.is_convolution_biased else ()
    return Part(name, "Conv1d", (weight, *bias))


def _delta(mixer: Mixer, hidden: int, family: str) -> _Parts:
    """The input projections are fused, split in four, or named as in attention (Olmo)."""
    keys, values = mixer.key_heads * mixer.key, mixer.inner
    of_heads = tuple(TensorFact(name, (mixer.heads,)) for name in ("dt_bias", "A_log"))
    widths = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * mixer.heads}
    norm, output = "norm", "out_proj"
    if family.startswith("qwen3_5"):
        widths = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values}
        widths |= {"in_proj_b": mixer.heads, "in_proj_a": mixer.heads}
    elif family == "olmo_hybrid":
        widths = {"q_proj": keys, "k_proj": keys, "v_proj": values}
        widths |= {"a_proj": mixer.heads, "b_proj": mixer.heads, "g_proj": values}
        norm, output = "o_norm", "o_proj"
    maps = tuple(linear(name, hidden, width) for name, width in widths.items())
    ends = rms_norm(norm, mixer.head), linear(output, values, hidden)
    return of_heads, (_short_convolution(mixer), *maps, *ends)


def _kimi_delta(mixer: Mixer, hidden: int, family: str) -> _Parts:
    width, rank = mixer.inner, mixer.rank
    rates = (TensorFact("dt_bias", (width,)), TensorFact("A_log", (mixer.heads,)))
    forget = [linear("f_proj", hidden, width)]
    gate = [linear("g_proj", hidden, width)]
    if rank:
        rates = (rates[0], TensorFact("A_log", (1, 1, mixer.heads, 1)))
        forget = [linear("f_a_proj", hidden, rank), linear("f_b_proj", rank, width)]
        gate = [linear("g_a_proj", hidden, rank), linear("g_b_proj", rank, width)]
    return (), (
        *(linear(f"{name}_proj", hidden, width) for name in "qkv"),
        _short_convolution(mixer),
        Part("forget_gate", "ForgetGate", rates, tuple(forget)),
        linear("b_proj", hidden, mixer.heads),
        *gate,
        rms_norm("o_norm", mixer.head),
        linear("o_proj", width, hidden),
    )


def _mamba(mixer: Mixer, hidden: int, family: str) -> _Parts:
    inner, rank, state = mixer.inner, mixer.rank, mixer.key
    own = (TensorFact("A_log", (inner, state)), TensorFact("D", (inner,)))
    norms = (("dt", rank), ("b", state), ("c", state)) if mixer.is_normed else ()
    return own, (
        _short_convolution(mixer),
        linear("in_proj", hidden, 2 * inner, bias=mixer.is_biased),
        linear("x_proj", inner, rank + 2 * state),
        linear("dt_proj", rank, inner, bias=True),
        linear("out_proj", inner, hidden, bias=mixer.is_biased),
        *(rms_norm(f"{name}_layernorm", width) for name, width in norms),
    )


def _mamba_2(mixer: Mixer, hidden: int, family: str) -> _Parts:
    inner = mixer.inner
    own = tuple(TensorFact(name, (mixer.heads,)) for name in ("dt_bias", "A_log", "D"))
    projected = inner + mixer.convolved + mixer.heads
    return own, (
        _short_convolution(mixer),
        linear("in_proj", hidden, projected, bias=mixer.is_biased),
        *((rms_norm("norm", inner),) if mixer.is_normed else ()),
        linear("out_proj", inner, hidden, bias=mixer.is_biased),
    )


def _convolution(mixer: Mixer, hidden: int, family: str) -> _Parts:
    return (), (
        _short_convolution(mixer, "conv"),
        linear("in_proj", hidden, 3 * hidden, bias=mixer.is_biased),
        linear("out_proj", hidden, hidden, bias=mixer.is_biased),
    )


def _lightning(mixer: Mixer, hidden: int, family: str) -> _Parts:
    width = mixer.inner
    return (), (
        rms_norm("norm", width),
        linear("qkv_proj", hidden, 3 * width),
        linear("out_proj", width, hidden),
        linear("output_gate", hidden, width),
    )


def _recurrent(mixer: Mixer, hidden: int, family: str) -> _Parts:
    width, heads, head = mixer.inner, mixer.heads, mixer.head
    gates = [TensorFact("recurrent_param", (width,))]
    for name in ("input_gate", "recurrent_gate"):
        gates.append(TensorFact(f"{name}_weight", (heads, head, head)))
        gates.append(TensorFact(f"{name}_bias", (heads, head)))
    return (), (
        linear("linear_y", hidden, width, bias=True),
        linear("linear_x", hidden, width, bias=True),
        linear("linear_out", width, hidden, bias=True),
        _short_convolution(mixer, "conv_1d"),
        Part("rg_lru", "Rglru", tuple(gates)),
    )


_KINDS = {
    Mixing.DELTA: ("GatedDeltaNet", _delta),
    Mixing.KIMI_DELTA: ("DeltaAttention", _kimi_delta),
    Mixing.MAMBA: ("MambaMixer", _mamba),
    Mixing.MAMBA_2: ("Mamba2Mixer", _mamba_2),
    Mixing.CONVOLUTION: ("ShortConv", _convolution),
    Mixing.LIGHTNING: ("LightningAttention", _lightning),
    Mixing.RECURRENT: ("RecurrentBlock", _recurrent),
}

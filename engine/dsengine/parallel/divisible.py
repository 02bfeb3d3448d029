"""Models of transformers whose samples can be divided along the sequence.

[Note: proof of divided attention]
Each token may depend on tokens of other ranks only through attention that transformers looks up by
its name. What is known to do so otherwise is refused by its configuration or modules. The rest is
seen in the first forward: every attention that runs must have called the registered function, and
the logits must be those of the rank's own tokens.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dsconfig import nearest_degree
from dsconfig.features.table import FEATURES
from dsengine.parallel.attention import SequenceAttention
from dsengine.topology import world_size

RECURRENT = ("linear_attention", "mamba", "recurrent", "conv")
"""Types of layers that carry a state along the sequence."""
DEPENDENT = re.compile("Mamba|Recurrent|Rwkv|xLSTM|DeltaNet|ShortConv|Indexer|Pooler|Pooling")
"""Names of modules that mix tokens, or select some of them, outside attention."""
POOLED = re.compile(
    "For(Sequence|Image|Audio)Classification|ForMultipleChoice|ForQuestionAnswering|"
    "ForNextSentencePrediction|DoubleHeads"
)
"""Heads that combine the tokens of a sample."""
ALONE = "use sequence_parallel_size 1"


def refuse_config(config: Any, ranks: int, parts: int = 1) -> None:
    """Raise ValueError if layers or heads of a text config cannot be divided over ``ranks``.

    ``parts``: the ranks over which layers split the heads before.
    """
    types = set(getattr(config, "layer_types", None) or ())
    divided = {name for name in types if any(part in name for part in RECURRENT)}
    divided |= types & {"chunked_attention"}
    if divided:
        raise ValueError(
            f"layers of type {', '.join(sorted(divided))} need the whole sequence on one rank: "
            f"{ALONE}"
        )
    if getattr(config, "token_dropout", False):
        raise ValueError(
            "token_dropout scales the embeddings of a sample by its share of masked tokens, but "
            f"each rank has only some of them: set it to false, or {ALONE}"
        )
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads) // parts
    refuse_heads(heads // parts, kv_heads, ranks)


def refuse_heads(heads: int, kv_heads: int, ranks: int) -> None:
    """Raise ValueError unless each rank gets as many heads; fewer key/value heads than ranks are
    repeated."""

    def divides(degree: int) -> bool:
        return heads % degree == 0 and (kv_heads % degree == 0 or degree % kv_heads == 0)

    if not divides(ranks):
        nearest = nearest_degree(ranks, max(ranks, world_size()), divides)
        raise ValueError(
            f"{heads} attention heads and {kv_heads} key/value heads cannot be divided over "
            f"sequence_parallel_size {ranks}: use {nearest}"
        )


def refuse_model(model: nn.Module, kind: str) -> None:
    """Raise ValueError for modules that need the whole sequence, or attend by another ``kind``."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        text = FEATURES["cross_attention"].text
        raise ValueError(f"{type(model).__name__} is an encoder-decoder: {text}")
    chosen = getattr(config.get_text_config(), "_attn_implementation", None)
    if chosen not in (None, kind):
        raise ValueError(
            f"the model uses attn_implementation={chosen!r}, but core_attn_implementation is "
            f"{kind!r}: set both to the same"
        )
    decoder: Any = getattr(model, "get_decoder", lambda: None)() or model
    towers = [m for m in decoder.modules() if _is_model(m) and m.config is not decoder.config]
    text = {model, *decoder.modules()}.difference(*(tower.modules() for tower in towers))
    for module, message in mixing_modules(model).items():
        if module in text:
            raise ValueError(message)
    for name in (type(module).__name__ for module in model.modules()):
        if POOLED.search(name):
            raise ValueError(
                f"{name} combines the tokens of a sample, but each rank has only some of them: "
                f"{ALONE}"
            )
    if not any(map(_takes_positions, model.modules())):
        raise ValueError(
            f"{type(model).__name__} has no position_ids: it would number the tokens of each part "
            f"from 0: {ALONE}"
        )


def mixing_modules(model: nn.Module) -> dict[nn.Module, str]:
    """Return the modules that mix tokens outside attention, and why they cannot be divided.

    A model may run without some of them: towers of images and audio.
    """
    return {
        module: f"{f'{path} ({name})' if path else name} needs the whole sequence on one rank: "
        + ALONE
        for path, module in model.named_modules()
        if DEPENDENT.search(name := type(module).__name__)
        or (isinstance(module, nn.Conv1d) and module.kernel_size != (1,))
    }


def depends_on_length(module: nn.Module) -> bool:
    """Return whether frequencies of a rotary embedding depend on the length of the sequence."""
    kinds: Any = getattr(module, "rope_type", None)
    kinds = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any(kind in ("dynamic", "longrope") for kind in kinds)


def _takes_positions(module: nn.Module) -> bool:
    return _is_model(module) and "position_ids" in inspect.signature(module.forward).parameters


def fault_of(arguments: Mapping[str, Any], *, shifts_labels: bool) -> str:
    """Return what is wrong with the arguments of a forward on a part of a sequence, or "".

    ``shifts_labels``: the model's own loss compares a token with the label of the next.
    """
    if "position_ids" not in arguments:
        return (
            "sequence parallelism requires position_ids in every forward: pass "
            "torch.arange(length), restarting at each packed sample, divided like input_ids"
        )
    if "encoder_hidden_states" in arguments:
        return f"encoder_hidden_states: {FEATURES['cross_attention'].text}"
    mask = arguments.get("attention_mask")
    if mask is not None and not (
        isinstance(mask, Tensor) and mask.dim() == 2 and not mask.is_floating_point()
    ):
        form = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask)
        return (
            f"attention_mask is {form}, but sequence parallelism divides only padding: pass "
            "integers or booleans of the shape [batch, part of the sequence]"
        )
    if shifts_labels and "labels" in arguments and "shift_labels" not in arguments:
        return (
            "labels would be shifted within each part of a sequence, so the last token of a part "
            "would have none: pass shift_labels, the label of each token's next token, as "
            "UlyssesSPDataLoaderAdapter does"
        )
    return ""


class AttentionProof:
    """Observes the first forward of a model. [Note: proof of divided attention]"""

    def __init__(self, model: nn.Module, attention: SequenceAttention) -> None:
        self._attention, self._ran = attention, set[nn.Module]()
        self._served = attention.observe()
        self._handles = [
            module.register_forward_pre_hook(self._record) for module in _attention_of(model)
        ]

    def _record(self, module: nn.Module, _: Any) -> None:
        if not torch.compiler.is_compiling():  # compiled code does not add to both sets alike
            self._ran.add(module)

    def close(self) -> None:
        self._attention.end_observation()
        for handle in self._handles:
            handle.remove()

    def check(self, model: nn.Module, arguments: Mapping[str, Any], output: Any) -> None:
        """Raise ValueError if the forward used other tokens than through registered attention."""
        without = sorted({type(module).__name__ for module in self._ran - self._served})
        if without or not self._served:
            names = ", ".join(without) or type(model).__name__
            raise ValueError(
                f"{names} does not call the attention function registered with transformers, so "
                f"each part of a sequence would attend to itself only: {ALONE}"
            )
        tokens = arguments.get("input_ids", arguments.get("inputs_embeds"))
        logits = getattr(output, "logits", None)
        if "logits_to_keep" in arguments or not isinstance(tokens, Tensor):
            return
        if isinstance(logits, Tensor) and logits.shape[1:2] != tokens.shape[1:2]:
            raise ValueError(
                f"{type(model).__name__} returns logits {list(logits.shape)} for "
                f"{tokens.shape[1]} tokens of a part: it combines the tokens of a sample: {ALONE}"
            )


def _attention_of(model: nn.Module) -> list[nn.Module]:
    """Return the innermost modules named attention that have weights."""
    named = {m for m in model.modules() if re.search("Attention|Attn", type(m).__name__)}
    return [
        module
        for module in named
        if sum(inner in named for inner in module.modules()) == 1
        and sum(parameter.dim() > 1 for parameter in module.parameters()) > 1
    ]


def _is_model(module: Any) -> bool:
    return hasattr(module, "config") and hasattr(module, "get_input_embeddings")

"""Bytes of logits and loss, by how the loss is computed."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from dsconfig.cost.formulas import LOGITS
from dsconfig.facts.model import Architecture
from dsconfig.facts.request import LOSSES
from dsconfig.schema.version import Version


class Loss(StrEnum):
    """How logits of one micro batch are kept while the loss is computed and differentiated."""

    PLAIN = "plain"
    """As in transformers: an fp32 copy, a log-softmax, and the gradients of both."""
    NARROW = "16bit"
    """The same without an fp32 copy."""
    FUSED = "fused"
    """Cross entropy in one kernel, whose gradient overwrites the logits (flash-attn's
    ``inplace_backward``, llm-foundry's fused_crossentropy)."""
    FUSED_LINEAR = "fused-linear"
    """Head and cross entropy in one kernel, by chunks of tokens: no logits (Liger)."""
    CHUNKED = "chunked"
    """Plain, on one chunk of the full logits after the other (torchtune)."""


CHUNKS = 8
"""Chunks of a chunked loss: torchtune's ``num_output_chunks``."""

SELECTS_LOSS = {"loss", "use_liger_kernel", "torch_compile"}
"""Settings of a run that select a loss."""
LIGER_FAMILIES = frozenset(
    (
        *("exaone4", "falcon_h1", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma4_text"),
        *("glm4", "glm4v", "glm4v_moe", "gpt_oss", "granite", "hunyuan_v1_dense"),
        *("hunyuan_v1_moe", "internvl", "llama", "llama4", "llama4_text", "llava", "ministral"),
        *("mistral", "mixtral", "mllama", "mllama_text_model", "nemotron", "olmo2", "olmo3"),
        *("paligemma", "phi3", "pixtral", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl"),
        *("qwen2_vl_text", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"),
        *("qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_moe_text"),
        *("qwen3_vl_text", "smollm3", "smolvlm"),
    )
)
"""Families that ``use_liger_kernel`` changes (``MODEL_TYPE_TO_APPLY_LIGER_FN`` of liger-kernel
0.8.0); for others the Trainer only logs a warning."""

FORMULAS: Mapping[Loss, str] = {
    Loss.PLAIN: f"{LOGITS}, 16-bit and fp32 copies",
    Loss.NARROW: f"{LOGITS}, 16-bit copies",
    Loss.FUSED: f"{LOGITS}, once",
    Loss.FUSED_LINEAR: "compute-dtype bytes x hidden size x (vocabulary + sequence length x batch) "
    "and a chunk of logits; 4 bytes more per weight of the head while its gradient is added",
    Loss.CHUNKED: f"{LOGITS}, fp32 copies of an eighth",
}


def loss_of(arguments: Mapping[str, Any]) -> Loss:
    """Return ``loss`` if set; else the loss that ``use_liger_kernel`` selects with its settings."""
    named = arguments.get("loss")
    if named in LOSSES:
        return Loss(named)
    if not arguments.get("use_liger_kernel"):
        return Loss.PLAIN
    given = arguments.get("liger_kernel_config")
    chosen = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if chosen.get("fused_linear_cross_entropy", True):
        return Loss.FUSED_LINEAR
    return Loss.FUSED if chosen.get("cross_entropy") else Loss.PLAIN


def loss_bytes(
    kind: Loss,
    shape: Architecture,
    width: int,
    tokens: int,
    tensor: int = 1,
    *,
    fp32_copy: bool = True,
    fp32_logits: bool = False,
    trains_head: bool = True,
) -> tuple[int, int]:
    """Return (end of forward, start of backward): logits, loss and their gradients.

    ``tensor``: ranks that divide the vocabulary; ``fp32_copy``: False if a compiler reads 16-bit
    logits; ``fp32_logits``: see ``upcasts_logits``; ``trains_head``: whether the head gets a
    gradient.
    """
    values = tokens * shape.vocab_size // tensor
    if kind is Loss.FUSED_LINEAR:
        return fused_linear(shape, width, tokens, tensor, trains_head=trains_head)
    if kind is Loss.FUSED:
        return values * width, values * width
    if kind is Loss.NARROW:
        return values * 2 * width, values * 4 * width
    if fp32_logits:
        width = 4
    forward, backward = plain(values, width, fp32_copy=fp32_copy)
    if fp32_logits:
        forward += values * width  # shifted by one token: a copy, freed when forward ends
    if kind is Loss.PLAIN:
        return forward, backward
    logits = values * width  # their gradient is filled chunk by chunk
    return logits + (forward - logits) // CHUNKS, 2 * logits + (backward - logits) // CHUNKS


SHIFTS_LABELS = Version(4, 46, 0)
"""From this release of transformers on the loss shifts labels, not logits, and the model returns
logits in its own dtype (huggingface/transformers#33902, #34147)."""
UPCASTING = frozenset({"llama", "mistral", "mixtral", "qwen2", "gemma2", "phi", "phi3"})
"""Families whose forward cast logits to fp32 before it."""


def upcasts_logits(family: str | None, transformers: str | None) -> bool:
    """Return whether the logits themselves are fp32, at a release of transformers; None: the
    current one."""
    if transformers is None or family not in UPCASTING:
        return False
    return Version.parse(transformers) < SHIFTS_LABELS


def plain(values: int, width: int, *, fp32_copy: bool = True) -> tuple[int, int]:
    """Logits w, their fp32 copy 4, log-softmax 4; then the last and the fp32 gradients of both 4.

    The copy of 16-bit logits is freed when forward ends (transformers 5.23, ``ForCausalLMLoss``);
    the logits stay alive while the script holds the model's outputs, as custom loops do.
    """
    copy = 4 if width == 2 else 0
    if not fp32_copy:
        forward = values * (4 + copy // 2)
        return forward, 2 * forward
    kept = values * (width + 4)
    return kept + values * copy, kept + values * 8


def fused_linear(
    shape: Architecture, width: int, tokens: int, tensor: int, *, trains_head: bool = True
) -> tuple[int, int]:
    """Head and loss in one kernel: no logits, but the gradients, which forward already computes.

    Tokens go through in chunks, about v/h of them, each rounded up to a power of two. Each chunk
    makes its logits while the previous ones are still allocated; then its contribution to the
    head's gradient, and the fp32 copy that is added. Equal to the byte to what liger-kernel 0.8.0
    allocates (ops/fused_linear_cross_entropy.py, unchanged since 0.6.2).
    """
    head = shape.vocab_size * shape.hidden_size // tensor if trains_head else 0
    chunks = -(-shape.vocab_size // shape.hidden_size)
    chunk = min(tokens, 1 << (-(-tokens // chunks) - 1).bit_length())
    logits = chunk * shape.vocab_size // tensor * width
    before = logits if chunk < tokens else 0
    share = head * (width + (4 if width == 2 else 0))
    gradients = width * (head + tokens * shape.hidden_size)
    loss_and_mask = 5 * tokens
    return gradients + loss_and_mask + logits + max(before, share), gradients

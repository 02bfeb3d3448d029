"""What head and loss hold, at the end of forward and at the start of backward (bytes).

Notation: s b tokens, h hidden size, v vocabulary, w bytes of the model dtype. ``tensor`` is the
degree of tensor parallelism, which divides the vocabulary.
"""

from dsconfig.facts.model import Architecture

PLAIN = "s b v, 16-bit and fp32 copies"
FUSED = "w(vh + sbh), a chunk of logits, (w + 4)vh while its gradient is added"


def plain_loss(
    shape: Architecture, width: int, tokens: int, tensor: int, *, fp32_copy: bool = True
) -> tuple[int, int]:
    """Logits w, their fp32 copy 4, log-softmax 4; then the fp32 gradient 4 and its cast w."""
    values = tokens * shape.vocab_size // tensor
    cast = width if width == 2 else 0
    forward = values * ((8 if fp32_copy else 4) + cast)
    return forward, forward + values * (4 + cast)


def fused_loss(
    shape: Architecture, width: int, tokens: int, tensor: int, *, trains_head: bool = True
) -> tuple[int, int]:
    """Head and loss in one kernel: no logits, but the gradients, which forward computes already.

    Tokens go through in chunks, about v/h of them, as many tokens each as the next power of
    two. Each chunk makes its logits while the last one's are still there; then its share of
    the head's gradient, and the fp32 copy of that which is added. To the byte what
    liger-kernel 0.8.0 allocates (ops/fused_linear_cross_entropy.py, alike since 0.6.2).
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

"""A model known only by its number of parameters."""

from dataclasses import replace
from functools import lru_cache
from math import log

from dsconfig.facts import architectures, inputs
from dsconfig.facts.inputs import FactError
from dsconfig.facts.model import Architecture, ModelTree

# Published decoder shapes (Llama, Qwen, OPT and GPT-3 papers): width and depth by size. Between two
# sizes, the depth is that of the nearer one and the width follows from the count.
_DEPTH_OF_COUNT = (
    (130e6, 12),
    (400e6, 24),
    (1.3e9, 24),
    (2.8e9, 32),
    (7e9, 32),
    (13e9, 40),
    (33e9, 60),
    (70e9, 80),
    (180e9, 96),
    (400e9, 126),
    (1e12, 128),
)
_VOCABULARY = 32_000
_POSITIONS = 4096


@lru_cache(maxsize=64)
def model(count: str | int | float) -> ModelTree:
    """Return a plausible Llama-like decoder of ``count`` parameters (``13e9``, ``13B``, ``700M``).

    ``parameters`` is the given count; ``assumed`` describes the chosen shape. There is no ``root``,
    because the exact tensors are unknown.
    """
    wanted = inputs.parse_count(count, "params")
    if wanted < 100_000:
        raise FactError("params", f"{count!r} is too few for a model; write 13e9, 13B or 700M")
    shape = _plausible(wanted)
    # One layout of a single block is enough, because all are equal and a search builds many models.
    layout = architectures.model_of("", replace(shape, layers=1))
    assert layout is not None and layout.largest_block is not None  # the Llama family is known
    laid_out = layout.parameters + (shape.layers - 1) * layout.largest_block
    return ModelTree(
        name=f"{count} parameters",
        parameters=wanted,
        trainable=wanted,
        architecture=shape,
        largest_tensor=layout.largest_tensor,
        largest_module=layout.largest_module,
        largest_block=layout.largest_block,
        hidden_size=shape.hidden_size,
        assumed=(
            f"a Llama-like decoder of {shape.layers} layers, width {shape.hidden_size}, "
            f"{shape.heads} heads, feed-forward width {shape.intermediate_size}, vocabulary "
            f"{shape.vocab_size:,} ({laid_out / 1e9:.2f}e9 parameters)",
        ),
    )


def _plausible(count: int) -> Architecture:
    """Return the widest shape (in steps of 128) that exceeds the count by less than half a step."""
    layers = min(_DEPTH_OF_COUNT, key=lambda row: abs(log(row[0] / count)))[1]
    vocabulary = _VOCABULARY if count >= 50e6 else max(256, count // 1024)
    # count = 12 * layers * h^2 + 2 * vocabulary * h, solved for h
    quadratic, linear = 12 * layers, 2 * vocabulary
    width = (-linear + (linear**2 + 4 * quadratic * count) ** 0.5) / (2 * quadratic)
    step = 128 if width >= 512 else 16
    hidden = max(step, round(width / step) * step)
    head = 128 if hidden % 128 == 0 and hidden >= 1024 else 64 if hidden % 64 == 0 else 16
    return Architecture(
        hidden_size=hidden,
        layers=layers,
        heads=hidden // head,
        kv_heads=hidden // head,
        head_dim=head,
        intermediate_size=round(8 * hidden / 3 / step) * step,
        vocab_size=vocabulary,
        max_positions=_POSITIONS,
        family="llama",
    )

"""The fused head and loss, held to what liger-kernel 0.8.0 allocates.

Recorded in the Triton interpreter on the CPU, by the storages that its operators return:
(tokens, hidden size, vocabulary, bytes of an element, head is trained, most held at once).
"""

import pytest

from dsconfig.cost.activations import fused_loss
from dsconfig.facts.model import Architecture

RECORDED = (
    (64, 32, 512, 2, True, 139_584),
    (64, 32, 512, 2, False, 12_608),
    (64, 32, 512, 4, True, 147_776),
    (64, 32, 512, 4, False, 24_896),
    (96, 64, 500, 2, True, 284_768),
    (96, 64, 500, 2, False, 44_768),
    (96, 64, 500, 4, True, 313_056),
    (128, 16, 1024, 2, True, 139_904),
    (128, 16, 1024, 4, False, 25_216),
    (256, 64, 256, 2, True, 197_888),
    (256, 64, 256, 2, False, 99_584),
    (256, 64, 256, 4, True, 263_424),
)


@pytest.mark.parametrize(("tokens", "hidden", "vocabulary", "width", "trained", "most"), RECORDED)
def test_the_fused_loss_holds_what_was_recorded_to_the_byte(
    tokens: int, hidden: int, vocabulary: int, width: int, trained: bool, most: int
) -> None:
    shape = Architecture(
        family="llama",
        hidden_size=hidden,
        layers=1,
        heads=1,
        vocab_size=vocabulary,
    )
    forward, backward = fused_loss(shape, width, tokens, 1, trains_head=trained)
    assert forward == most
    assert backward == width * (hidden * tokens + (hidden * vocabulary if trained else 0))

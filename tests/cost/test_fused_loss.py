"""The fused head and loss, compared with what liger-kernel 0.8.0 allocates.

Recorded in the Triton interpreter on the CPU, from the storages that its operators return:
(tokens, hidden size, vocabulary, bytes per element, head is trained, peak bytes).
"""

from typing import Any

import pytest

from dsconfig.cost.loss import Loss, fused_linear, loss_bytes, loss_of
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
def test_fused_loss_equals_recorded_bytes(
    tokens: int, hidden: int, vocabulary: int, width: int, trained: bool, most: int
) -> None:
    shape = Architecture(
        family="llama",
        hidden_size=hidden,
        layers=1,
        heads=1,
        vocab_size=vocabulary,
    )
    forward, backward = fused_linear(shape, width, tokens, 1, trains_head=trained)
    assert forward == most
    assert backward == width * (hidden * tokens + (hidden * vocabulary if trained else 0))


SHAPE = Architecture(hidden_size=64, layers=1, heads=1, vocab_size=1000)


@pytest.mark.parametrize(
    ("kind", "forward", "backward"),
    [
        (Loss.PLAIN, 10, 14),
        (Loss.NARROW, 4, 8),
        (Loss.FUSED, 2, 2),
        (Loss.CHUNKED, 2 + 8 / 8, 4 + 12 / 8),
    ],
)
def test_bytes_per_logit_by_loss_kernel(kind: Loss, forward: float, backward: float) -> None:
    values = 128 * SHAPE.vocab_size
    assert loss_bytes(kind, SHAPE, 2, 128) == (values * forward, values * backward)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({}, Loss.PLAIN),
        ({"loss": "16bit"}, Loss.NARROW),
        ({"use_liger_kernel": True}, Loss.FUSED_LINEAR),
        ({"use_liger_kernel": True, "loss": "plain"}, Loss.PLAIN),
        (
            {
                "use_liger_kernel": True,
                "liger_kernel_config": {
                    "fused_linear_cross_entropy": False,
                    "cross_entropy": True,
                },
            },
            Loss.FUSED,
        ),
    ],
)
def test_loss_follows_the_arguments(arguments: dict[str, Any], kind: Loss) -> None:
    assert loss_of(arguments) is kind

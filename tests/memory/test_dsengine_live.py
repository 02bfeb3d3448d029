"""dsengine tells the truth about itself: live bytes of real runs on 2 ranks, within 2 %."""

from collections.abc import Iterator
from typing import Any

import pytest

from training.ranks import Ranks

pytestmark = pytest.mark.engine
TOLERANCE = 0.02
LEAN = {
    "stage3_param_persistence_threshold": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
}
"""Every unit is gathered around its use and freed after it."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(2) as running:
        yield running


def config(stage: int, precision: str, accumulation: int, **zero: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, **zero},
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
    }


def check(ranks: Ranks, chosen: dict[str, Any]) -> None:
    for phase, found in ranks.run("memory.live_jobs:measured_and_estimated", config=chosen)[
        0
    ].items():
        peak, expected_peak, rest, expected_rest = found
        assert expected_peak == pytest.approx(peak, rel=TOLERANCE), f"peak of {phase}"
        assert expected_rest == pytest.approx(rest, rel=TOLERANCE), f"after {phase}"


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_each_phase_is_predicted(
    ranks: Ranks, stage: int, precision: str, accumulation: int
) -> None:
    check(ranks, config(stage, precision, accumulation))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_units_that_are_freed_after_forward_are_predicted(ranks: Ranks, precision: str) -> None:
    check(ranks, config(3, precision, 1, **LEAN))


def test_communication_in_fp32_is_predicted(ranks: Ranks) -> None:
    check(ranks, {**config(2, "bf16", 1), "communication_data_type": "fp32"})

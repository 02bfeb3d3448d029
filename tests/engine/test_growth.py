"""Training keeps no objects and no tensors from one step to the next."""

import pytest

from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_steps_keep_no_objects(ranks: Ranks, stage: int) -> None:
    schedule = {"type": "WarmupLR", "params": {}}
    settings = config(
        stage, gradient_clipping=1.0, scheduler=schedule, bf16={"enabled": stage % 2 == 1}
    )
    check(ranks.run("training.jobs:growth", config=settings))


@pytest.mark.parametrize(
    ("axis", "stage"), [("packed", 0), ("tensor", 1), ("expert", 2), ("sequence", 3)]
)
def test_steps_of_a_divided_model_keep_no_objects(ranks: Ranks, axis: str, stage: int) -> None:
    check(ranks.run("training.axes:growth", axis=axis, stage=stage))


def check(grown: list[tuple[int, int]]) -> None:
    """One object per window would be 30, one fp32 scalar 120 bytes."""
    for objects, tensor_bytes in grown:
        assert objects < 20 and tensor_bytes < 100

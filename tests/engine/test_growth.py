"""Training keeps no objects from one step to the next."""

import pytest

from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_steps_keep_no_objects(ranks: Ranks, stage: int) -> None:
    """One object per window would be 30."""
    schedule = {"type": "WarmupLR", "params": {}}
    settings = config(
        stage, gradient_clipping=1.0, scheduler=schedule, bf16={"enabled": stage % 2 == 1}
    )
    assert max(ranks.run("training.jobs:growth", config=settings)) < 20

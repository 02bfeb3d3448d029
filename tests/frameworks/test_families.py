"""Families of transformers' models train alike at every stage."""

from collections.abc import Iterator

import pytest

from frameworks.families import SOME
from training.ranks import Ranks

pytestmark = [pytest.mark.live, pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
JOB = "frameworks.family_jobs:trained"


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    """Their own: transformers may bring DeepSpeed along."""
    with Ranks(2) as own:
        yield own


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_thirty_families_train_alike_at_every_stage(two: Ranks, stage: int) -> None:
    assert len(SOME) > 30
    whole = two.once(JOB, seconds=400, model_types=list(SOME), stage=0)[0]
    divided = two.run(JOB, seconds=400, model_types=list(SOME), stage=stage)
    assert divided[0] == divided[1]
    for family in SOME:
        assert divided[0][family] == pytest.approx(whole[family], rel=1e-4), family

"""Weights of divided experts are read, written, saved and loaded undivided."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sweeps import sweep
from training.ranks import Ranks, SharedRanks

pytestmark = pytest.mark.engine
JOBS = "engine_storage.jobs.expert_layouts"
KINDS = ["own", pytest.param("Mixtral", marks=pytest.mark.live)]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_moments_are_bit_equal_in_another_layout(
    ranks_of: SharedRanks, tmp_path: Path, kind: str
) -> None:
    """Two parts at stage 3 on four ranks, one rank, undivided on two ranks, two parts."""
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    job, options = f"{JOBS}:continued", {"kind": kind}
    layouts: list[tuple[int, dict[str, Any]]] = [
        (4, {"stage": 3, "experts": 2, "save": first}),
        (1, {"stage": 0, "experts": 1, "load": first, "save": second}),
        (2, {"stage": 1, "experts": 1, "load": second, "save": third}),
        (2, {"stage": 2, "experts": 2, "load": third}),
    ]
    runs = [ranks_of(number).run(job, **options, **layout) for number, layout in layouts]
    for saved, loaded in pairwise(runs):
        assert all(len(digests) == 3 for digests in saved[0]["after"].values())
        for rank in loaded:
            assert rank["before"] == saved[0]["after"]
        assert loaded[0]["after"] != loaded[0]["before"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("stage", "number"), [(0, 2), (0, 4), (1, 4), (2, 2), (3, 2), (3, 4)])
def test_full_weights_are_bit_equal(
    ranks_of: SharedRanks, tmp_path: Path, stage: int, number: int, kind: str
) -> None:
    options: dict[str, Any] = {"stage": stage, "kind": kind, "folder": str(tmp_path)}
    assert ranks_of(number).run(f"{JOBS}:whole", **options) == [[]] * number


@sweep(1, stage=[0, 1, 3], number=[2, 4])
def test_full_weights_are_written_and_gradients_read(
    ranks_of: SharedRanks, number: int, stage: int
) -> None:
    for differences in ranks_of(number).run(f"{JOBS}:written", stage=stage, kind="own"):
        assert max(differences) < 1e-5


@pytest.mark.parametrize(("first", "second"), [(3, 0), (1, 3), (0, 2)])
def test_model_is_undivided_for_the_next_engine(ranks: Ranks, first: int, second: int) -> None:
    options: dict[str, Any] = {"first": first, "second": second, "kind": "own"}
    assert ranks.run(f"{JOBS}:again", **options) == [True, True]

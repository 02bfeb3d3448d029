"""Split layers are read, written, saved and loaded whole."""

from itertools import pairwise
from pathlib import Path

import pytest

from training.ranks import Ranks, SharedRanks

pytestmark = [pytest.mark.live, pytest.mark.engine]
JOBS = "engine_storage.jobs.tensor_layouts"


def test_weights_and_moments_are_bit_equal_in_another_layout(
    ranks_of: SharedRanks, tmp_path: Path
) -> None:
    """TP2 x Z3 on four ranks, SP2 x Z1, one rank, TP2 at stage 2."""
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    job = f"{JOBS}:continued"
    runs = [
        ranks_of(4).run(job, stage=3, tensor=2, save=first),
        ranks_of(2).run(job, stage=1, sequence=2, load=first, save=second),
        ranks_of(1).run(job, stage=0, load=second, save=third),
        ranks_of(2).run(job, stage=2, tensor=2, load=third),
    ]
    for saved, loaded in pairwise(runs):
        assert all(len(digests) == 3 for digests in saved[0]["after"].values())
        for rank in loaded:
            assert rank["before"] == saved[0]["after"]
        assert loaded[0]["after"] != loaded[0]["before"]


def test_packed_weights_are_bit_equal_in_another_layout(
    ranks_of: SharedRanks, tmp_path: Path
) -> None:
    """TP2 x Z3 on four ranks, one rank, TP2 at stage 1, TP2 x Z3 on four ranks."""
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    job = f"{JOBS}:continued"
    runs = [
        ranks_of(4).run(job, kind="fused", stage=3, tensor=2, save=first),
        ranks_of(1).run(job, kind="fused", stage=0, load=first, save=second),
        ranks_of(2).run(job, kind="fused", stage=1, tensor=2, load=second, save=third),
        ranks_of(4).run(job, kind="fused", stage=3, tensor=2, load=third),
    ]
    for saved, loaded in pairwise(runs):
        for rank in loaded:
            assert rank["before"] == saved[0]["after"]
        assert loaded[0]["after"] != loaded[0]["before"]


@pytest.mark.parametrize("kind", ["qwen 3", "gemma 3", "fused", "mixtral"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_whole_weights_are_bit_equal(ranks: Ranks, tmp_path: Path, stage: int, kind: str) -> None:
    job = f"{JOBS}:whole"
    assert ranks.run(job, stage=stage, kind=kind, folder=str(tmp_path)) == [[], []]


@pytest.mark.parametrize("stage", [1, 3])
def test_whole_weights_of_data_and_tensor(
    ranks_of: SharedRanks, tmp_path: Path, stage: int
) -> None:
    found = ranks_of(4).run(f"{JOBS}:whole", stage=stage, kind="qwen 3", folder=str(tmp_path))
    assert found == [[]] * 4


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("number", [2, 4])
def test_whole_weights_are_written_and_gradients_read(
    ranks_of: SharedRanks, number: int, stage: int
) -> None:
    for differences in ranks_of(number).run(f"{JOBS}:written", stage=stage):
        assert max(differences) < 1e-5


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [(3, 0, "qwen 3"), (1, 3, "qwen 3"), (0, 2, "qwen 3"), (3, 1, "fused"), (1, 3, "mixtral")],
)
def test_model_is_whole_again_for_the_next_engine(
    ranks: Ranks, first: int, second: int, kind: str
) -> None:
    job = f"{JOBS}:again"
    assert ranks.run(job, first=first, second=second, kind=kind) == [True, True]


@pytest.mark.parametrize("stage", [1, 3])
def test_full_weights_by_the_name_of_autotp(ranks: Ranks, stage: int) -> None:
    assert ranks.run(f"{JOBS}:replaced", stage=stage) == [[True, True]] * 2

"""Model families of transformers train equally at every stage."""

import sys
from pathlib import Path

import pytest

from frameworks import family_sweep
from frameworks.families import SOME
from frameworks.running import SECONDS, environment
from training.ranks import Ranks
from waiting import completed

pytestmark = [pytest.mark.live, pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
JOB = "frameworks.family_jobs:trained"


def test_there_are_more_than_thirty_families() -> None:
    assert len(SOME) > 30


@pytest.mark.parametrize("family", SOME)
def test_family_trains_equally_at_every_stage(two: Ranks, family: str) -> None:
    replicated, *sharded = (
        two.run(JOB, seconds=50, model_types=[family], stage=stage) for stage in range(4)
    )
    for one, other in sharded:
        assert one == other
        assert one[family] == pytest.approx(replicated[0][family], rel=1e-4)


@pytest.mark.parametrize("family", SOME)
def test_family_exports_what_it_saves(two: Ranks, tmp_path: Path, family: str) -> None:
    job = "frameworks.family_jobs:exported"
    for found in two.run(job, model_types=[family], stage=3, folder=str(tmp_path)):
        assert found == {family: ""}


def test_each_family_gets_one_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "families.jsonl"
    command = [sys.executable, "-m", "frameworks.family_sweep", "run", "vit", "llama", "nothing"]
    variables = {"FAMILIES_RUNS": str(file)}
    for _ in range(2):  # the second run has nothing to do
        done = completed(command, environment(2) | variables, SECONDS)
        assert done.returncode == 0, done.stderr
    monkeypatch.setattr(family_sweep, "RUNS", file)
    assert len(file.read_text().splitlines()) == 3
    assert {name: kind for name, (kind, _) in family_sweep.read().items()} == {
        "llama": "trained",
        "vit": "trained",
        "nothing": "not built",
    }


def test_page_matches_the_record() -> None:
    assert family_sweep.PAGE.read_text("utf-8") == family_sweep.page(family_sweep.recorded())


@pytest.mark.deep
def test_recorded_families_still_train() -> None:
    """Takes hours; resumes from runs/families.jsonl."""
    family_sweep.run(family_sweep.families())
    now, before = family_sweep.read(), family_sweep.recorded()["families"]
    failed = {name for name, (kind, _) in before.items() if kind == "failed"}
    assert {n: why for n, (kind, why) in now.items() if kind == "failed" and n not in failed} == {}
    trained = [name for name, (kind, _) in before.items() if kind == "trained"]
    assert [name for name in trained if name in now and now[name][0] != "trained"] == []

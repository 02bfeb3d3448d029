"""Model families of transformers train equally at every stage."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from frameworks import family_sweep
from frameworks.families import SOME
from frameworks.running import environment
from training.ranks import Ranks

pytestmark = [pytest.mark.live, pytest.mark.engine, pytest.mark.filterwarnings("ignore")]
JOB = "frameworks.family_jobs:trained"


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    """Separate ranks, because transformers may import DeepSpeed."""
    with Ranks(2) as own:
        yield own


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_thirty_families_train_equally_at_every_stage(two: Ranks, stage: int) -> None:
    assert len(SOME) > 30
    expected = two.once(JOB, seconds=400, model_types=list(SOME), stage=0)[0]
    sharded = two.run(JOB, seconds=400, model_types=list(SOME), stage=stage)
    assert sharded[0] == sharded[1]
    for family in SOME:
        assert sharded[0][family] == pytest.approx(expected[family], rel=1e-4), family


def test_thirty_families_export_what_they_save(two: Ranks, tmp_path: Path) -> None:
    job = "frameworks.family_jobs:exported"
    folder = str(tmp_path)
    for found in two.run(job, seconds=400, model_types=list(SOME), stage=3, folder=folder):
        assert found == dict.fromkeys(SOME, "")


def test_each_family_gets_one_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "families.jsonl"
    command = [sys.executable, "-m", "frameworks.family_sweep", "run", "vit", "llama", "nothing"]
    variables = {"FAMILIES_RUNS": str(file)}
    for _ in range(2):  # the second run has nothing to do
        subprocess.run(command, env=environment(2) | variables, check=True)
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

"""Families of transformers' models train alike at every stage."""

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


def test_each_comes_to_one_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "families.jsonl"
    command = [sys.executable, "-m", "frameworks.family_sweep", "run", "vit", "llama", "nothing"]
    more = {"FAMILIES_RUNS": str(told)}
    for _ in range(2):  # the second run finds everything done
        subprocess.run(command, env=environment(2) | more, check=True)
    monkeypatch.setattr(family_sweep, "RUNS", told)
    assert len(told.read_text().splitlines()) == 3
    assert {name: kind for name, (kind, _) in family_sweep.read().items()} == {
        "llama": "trained",
        "vit": "trained",
        "nothing": "not built",
    }


def test_the_page_is_that_of_the_record() -> None:
    assert family_sweep.PAGE.read_text("utf-8") == family_sweep.page(family_sweep.recorded())


@pytest.mark.deep
def test_every_family_that_trained_trains_still() -> None:
    """Hours: it goes on where it was stopped, in runs/families.jsonl."""
    family_sweep.run(family_sweep.families())
    now, before = family_sweep.read(), family_sweep.recorded()["families"]
    failed = {name for name, (kind, _) in before.items() if kind == "failed"}
    assert {n: why for n, (kind, why) in now.items() if kind == "failed" and n not in failed} == {}
    trained = [name for name, (kind, _) in before.items() if kind == "trained"]
    assert [name for name in trained if name in now and now[name][0] != "trained"] == []

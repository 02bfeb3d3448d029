"""Recorded DeepSpeed runs are reproduced: losses, norms, scales, skipped steps, rates."""

from pathlib import Path

import pytest

from replays import loss_scale, lr_schedules, train

ORACLE = Path(__file__).parents[1] / "oracle"


@pytest.mark.engine
@pytest.mark.parametrize(
    ("folder", "every"),
    [
        ("results", 8),
        pytest.param("results", 1, marks=pytest.mark.long),
        pytest.param("results_extras", 1, marks=pytest.mark.long),
        pytest.param("results_z3_nomel", 1, marks=pytest.mark.long),
    ],
)
def test_recorded_runs_are_reproduced(folder: str, every: int) -> None:
    cases = list(train.replay(ORACLE / "train" / folder, every))
    assert cases
    assert [case for case in cases if not case.agrees] == []


def test_failed_recording_compares_as_refused_or_working() -> None:
    record = {"name": "x", "ok": False, "error": "AssertionError: no"}
    refused = train.compare(record, [{"refused": "DSC999"}])
    works = train.compare(record, [{"refused": None, "steps": []}])
    assert refused.got == "refused: DSC999" and works.got == "works here"


def test_loss_scales_follow_the_recorded_path_exactly() -> None:
    assert [
        case.name for case in loss_scale.replay(ORACLE / "loss_scale.json") if not case.agrees
    ] == []


def test_schedules_agree_to_a_trillionth() -> None:
    cases = lr_schedules.replay(ORACLE / "lr_schedules.json")
    assert [case.name for case in cases if not case.agrees] == []

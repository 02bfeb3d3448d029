"""Folders of files as people have them, as the real transformers and accelerate start them."""

from pathlib import Path

import pytest

import replay
from launches.cases import launches
from launches.record import FILE
from replays.launches import judged

ROUNDS, SEED = 300, 11


def test_every_recorded_start_is_told() -> None:
    wrong, total = replay.run("launches", FILE)
    assert not wrong, "\n".join(f"{case.name}: {case.expected}; got {case.got}" for case in wrong)
    assert total >= 100


@pytest.mark.live
def test_random_starts_are_told_as_they_happen(tmp_path: Path) -> None:
    for program in ("deepspeed", "transformers", "accelerate"):
        pytest.importorskip(program)
    from launches.live import outcome

    wrong = []
    for case in launches(ROUNDS, SEED):
        folder = tmp_path / case.id
        folder.mkdir()
        found = judged(case, outcome(case, folder), folder)
        if not found.agrees:
            wrong.append(f"{case.id}: {found.expected}; got {found.got}")
    assert not wrong, "\n".join(wrong)

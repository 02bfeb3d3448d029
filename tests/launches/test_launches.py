"""Predicted outcomes of project folders equal those of transformers and accelerate."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import replay
from launches.record import FILE

ROUNDS, SEED, PARTS = 300, 11, 3


def test_recorded_launches_are_predicted() -> None:
    wrong, total = replay.run("launches", FILE)
    assert not wrong, "\n".join(f"{case.name}: {case.expected}; got {case.got}" for case in wrong)
    assert total >= 100


@pytest.mark.live
@pytest.mark.parametrize("part", range(PARTS))
def test_random_launches_are_predicted(tmp_path: Path, part: int) -> None:
    for program in ("deepspeed", "transformers", "accelerate"):
        pytest.importorskip(program)
    from launches.live import disagreements

    # In a separate process, without the patches of other tests.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        chosen = slice(part, None, PARTS)
        wrong = alone.submit(disagreements, tmp_path, ROUNDS, SEED, chosen).result()
    assert not wrong, "\n".join(wrong)


@pytest.mark.deep
@pytest.mark.live
def test_public_files_have_the_verdict_of_the_programs() -> None:
    from launches import public_files

    clones = os.environ.get("PUBLIC_CLONES")
    if clones is None:
        pytest.skip("PUBLIC_CLONES names no folder with clones of the listed repositories")
    assert list(public_files.differences(Path(clones))) == []

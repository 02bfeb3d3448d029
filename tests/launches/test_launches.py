"""Folders of files as people have them, as the real transformers and accelerate start them."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import replay
from launches.record import FILE

ROUNDS, SEED = 300, 11


def test_every_recorded_start_is_told() -> None:
    wrong, total = replay.run("launches", FILE)
    assert not wrong, "\n".join(f"{case.name}: {case.expected}; got {case.got}" for case in wrong)
    assert total >= 100


@pytest.mark.live
def test_random_starts_are_told_as_they_happen(tmp_path: Path) -> None:
    for program in ("deepspeed", "transformers", "accelerate"):
        pytest.importorskip(program)
    from launches.live import disagreements

    # A process of its own: what other tests have done to DeepSpeed is not there.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        wrong = alone.submit(disagreements, tmp_path, ROUNDS, SEED).result()
    assert not wrong, "\n".join(wrong)

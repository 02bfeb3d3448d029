"""Every part runs on the host in a tiny setting; its rows are stored and make a page."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu.cases import SKIPPED, rows
from gpu.copies import copies
from gpu.dry_run import PHASES, dry_run
from gpu.page import NOT_YET, PARTS, page
from gpu.records import measure, read
from gpu.setting import on_host
from gpu.speed import speed
from gpu.training import training

ROOT = Path(__file__).parents[2]
PATHS = (ROOT, ROOT / "engine", ROOT / "tests")
ON_HOST = on_host()


def completed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows as read back; none may have failed."""
    assert [row for row in found if "failed" in row] == []
    return json.loads(json.dumps(found))


@pytest.mark.engine
@pytest.mark.long
def test_training_compares_losses_and_runs_tests() -> None:
    *curves, tested = completed(training(ON_HOST, 300))
    assert len(curves) == 4
    assert {row["largest gap"] for row in curves} == {0.0}
    assert tested == {"case": "one", "passed": 1, "skipped": 0, "wrong": []}


@pytest.mark.engine
def test_dry_run_agrees_with_measured_peaks() -> None:
    found = completed(dry_run(ON_HOST, 300))
    assert [row["case"] for row in found] == [
        "stage 0, bf16",
        "stage 3, bf16",
        "stage 3, bf16, offloaded",
    ]
    for row in found:
        for phase in PHASES:
            real, output = row[phase]
            assert output == pytest.approx(real, rel=0.02), (row["case"], phase)


@pytest.mark.long
@pytest.mark.engine
def test_copies_are_timed_per_tile() -> None:
    for row in completed(copies(ON_HOST, 300)):
        assert row["tiles"] > 1
        assert row["parts pinned"].startswith("0 of ")
        assert row["step"] >= row["updating"] >= row["copying"] > 0
        assert 0 <= row["hidden"] <= 1


@pytest.mark.long
@pytest.mark.engine
def test_speed_is_measured_by_mode() -> None:
    found = completed(speed(ON_HOST, 300))
    assert [row["case"] for row in found] == list(ON_HOST.modes)
    assert all(row["tokens/s"] > 0 and row["MFU"] > 0 for row in found)


# Report


def test_failing_case_does_not_affect_others() -> None:
    found = rows({"bad": lambda: {"x": 1 // 0}, "good": lambda: {"x": 1}}, 60)
    assert found[0]["failed"].startswith("ZeroDivisionError")
    assert found[1] == {"case": "good", "x": 1}
    assert rows({"late": dict}, -1.0) == [{"case": "late", "failed": SKIPPED}]


def test_part_is_measured_once_per_commit_and_gpu(tmp_path: Path) -> None:
    calls: list[float] = []

    def speed(setting: Any, seconds: float) -> list[dict[str, Any]]:
        calls.append(seconds)
        return [{"case": "a", "tokens/s": 1.5}]

    assert [measure(speed, ON_HOST, 9.0, tmp_path, commit) for commit in ("x", "x", "y")] == [
        True,
        False,
        True,
    ]
    assert calls == [9.0, 9.0]
    record = read(tmp_path)["speed"]
    assert record["commit"] == "y" and record["rows"] == [{"case": "a", "tokens/s": 1.5}]
    assert "| a | 1.5 |" in page({"speed": record})


def test_page_without_measurements() -> None:
    text = (ROOT / "docs" / "internals" / "gpu.md").read_text("utf-8")
    assert text == page({}) or "Measured on" in text
    assert NOT_YET in page({}) and all(title in page({}) for title, _ in PARTS.values())


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is available")
def test_make_gpu_without_gpu_exits() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpu"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["make gpu requires a CUDA device; torch finds none"]

"""``dsconfig tune`` on a screen: the answer first, one row for what differs by nothing."""

import json
import os
import subprocess
import sys

import pytest

WORLD = ("--gpus", "4", "--device", "a100-80gb", "--seq-len", "4096")
EIGHT_B = ("--model", "llama-3-8b", *WORLD)


def tune(*flags: str, columns: int = 80) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"COLUMNS": str(columns), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "dsconfig", "tune", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_stages_that_differ_by_nothing_are_one_row() -> None:
    shown = tune(*EIGHT_B).stdout
    assert "stage 1 or 2, micro batch 1: fastest" in shown
    every = json.loads(tune(*EIGHT_B, "--output-format", "json").stdout)["candidates"]
    assert [each["label"] for each in every[:2]] == [
        "stage 1, micro batch 1",
        "stage 2, micro batch 1",
    ]
    rows = [line for line in tune(*EIGHT_B, "--all").stdout.splitlines() if "stage " in line]
    assert len(rows) < len(every)


def test_with_accumulation_stages_1_and_2_are_not_the_same() -> None:
    shown = tune(*EIGHT_B, "--global-batch", "64").stdout
    assert "1 or 2, micro batch 1 x 16" not in " ".join(shown.split())


def test_what_does_not_fit_is_said_first() -> None:
    huge = ("--model", "llama-2-70b", *WORLD)
    unknown = tune(*huge)
    assert unknown.returncode == 0 and "give --host-memory" in unknown.stderr
    done = tune(*huge, "--host-memory", "512GiB")
    assert done.returncode == 1
    assert done.stdout.split("\n\n")[1].startswith("Nothing fits. What comes nearest, stage 3")


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_screen(columns: int) -> None:
    assert max(map(len, tune(*EIGHT_B, "--all", columns=columns).stdout.splitlines())) <= columns

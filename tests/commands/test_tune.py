"""``dsconfig tune`` on a screen: the answer first, one row for what differs by nothing."""

import json
import os
import subprocess
import sys
from typing import Any

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


def test_of_two_stages_as_fast_the_leaner_wins_unless_it_sends_more() -> None:
    """Stage 2 has 5 GiB less than stage 1; stage 3 has less still, and gathers in every pass."""
    cards = ("--gpus", "8", "--device", "a100-80gb", "--seq-len")
    stages = candidates("--model", "llama-2-13b", *cards, "6144")[:3]
    assert [each["label"].partition(",")[0] for each in stages] == ["stage 2", "stage 1", "stage 3"]
    assert len({each["compared_seconds"] for each in stages}) == 1
    assert stages[1]["reason"] == "as fast, 5.5 GiB more"
    small = candidates("--model", "llama-3.2-1b", *cards, "2048")
    assert small[0]["label"].startswith("stage 1,"), "within 5 % of the card the simpler one"


def test_selective_recomputation_is_tried_where_none_does_not_fit() -> None:
    long = (*EIGHT_B[:-1], "8192")
    best, *others = candidates(*long)
    assert best["recomputation"] == "selective" and not best["reason"]
    assert any(each["recomputation"] == "full" for each in others)
    shown = " ".join(tune(*long).stdout.split())
    assert "recompute selectively: fastest" in shown
    assert "context_fn=dsengine.checkpointing.every_other_product)) in the script" in shown
    assert not any(each["recomputation"] == "selective" for each in candidates(*EIGHT_B)[:4])
    eager = candidates(*long, "--attention", "eager")
    assert not any(each["recomputation"] == "selective" for each in eager)


def candidates(*flags: str) -> list[dict[str, Any]]:
    return json.loads(tune(*flags, "--output-format", "json").stdout)["candidates"]


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_screen(columns: int) -> None:
    assert max(map(len, tune(*EIGHT_B, "--all", columns=columns).stdout.splitlines())) <= columns


OFFLOADED = ("--model", "llama-2-70b", "--gpus", "8", "--device", "a100-80gb", "--seq-len", "2048")


def test_a_batch_that_shares_the_offload_among_more_samples_is_told() -> None:
    """By seconds per sample of its own model, where the ranking is by the smallest batch."""
    told = " ".join(tune(*OFFLOADED).stdout.split())
    assert "in the smallest micro batch, by which they are ranked" in told
    assert "times as fast, in steps of" in told
    given = " ".join(tune(*OFFLOADED, "--global-batch", "512").stdout.split())
    assert "times as fast" not in given

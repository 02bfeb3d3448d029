"""``dsconfig tune``: verdict first, one row for equal candidates."""

import json
from pathlib import Path
from typing import Any

import pytest

import command_line
from command_line import Done

WORLD = ("--gpus", "4", "--device", "a100-80gb", "--seq-len", "4096")
EIGHT_B = ("--model", "llama-3-8b", *WORLD)


def tune(*flags: str, columns: int = 80) -> Done:
    return command_line.run("tune", *flags, columns=columns)


def test_equal_stages_share_one_row() -> None:
    shown = tune(*EIGHT_B).stdout
    assert "stage 1 or 2, micro batch 1: fastest" in shown
    every = json.loads(tune(*EIGHT_B, "--output-format", "json").stdout)["candidates"]
    assert [each["label"] for each in every[:2]] == [
        "stage 1, micro batch 1",
        "stage 2, micro batch 1",
    ]
    rows = [line for line in tune(*EIGHT_B, "--all").stdout.splitlines() if "stage " in line]
    assert len(rows) < len(every)


def test_accumulation_separates_stages_1_and_2() -> None:
    shown = tune(*EIGHT_B, "--global-batch", "64").stdout
    assert "1 or 2, micro batch 1 x 16" not in " ".join(shown.split())


def test_verdict_when_nothing_fits() -> None:
    huge = ("--model", "llama-2-70b", *WORLD)
    unknown = tune(*huge)
    assert unknown.returncode == 0 and "specify --host-memory" in unknown.stderr
    done = tune(*huge, "--host-memory", "512GiB")
    assert done.returncode == 1
    assert done.stdout.split("\n\n")[1].startswith("Nothing fits. Closest: stage 3")


def test_smaller_stage_wins_at_equal_speed() -> None:
    """Stage 2 has 5 GiB less than stage 1; stage 3 has less still, and gathers in every pass."""
    gpus = ("--runtime", "dsengine", "--gpus", "8", "--device", "a100-80gb", "--seq-len")
    one = ("6144", "--micro-batch", "1")
    stages = candidates("--model", "llama-2-13b", *gpus, *one)[:3]
    assert [each["label"].partition(",")[0] for each in stages] == ["stage 2", "stage 1", "stage 3"]
    assert len({each["seconds_per_sample"] for each in stages}) == 1
    assert stages[1]["reason"] == "as fast, 5.9 GiB more"
    small = candidates("--model", "llama-3.2-1b", *gpus, "2048")
    assert small[0]["label"].startswith("stage 1,"), "within 5 % of the GPU memory, the simpler one"


def test_selective_recomputation_is_tried_if_none_does_not_fit() -> None:
    long = (*EIGHT_B[:-1], "8192", "--runtime", "dsengine")
    best, *others = candidates(*long)
    assert best["recomputation"] == "selective" and not best["reason"]
    assert any(each["recomputation"] == "full" for each in others)
    shown = " ".join(tune(*long).stdout.split())
    assert "recompute selectively: fastest" in shown
    assert "context_fn=dsengine.checkpointing.every_other_product)) in the script" in shown
    # Where the same batch fits without it there is no use for it.
    one = (*EIGHT_B[:-1], "2048", "--micro-batch", "1", "--runtime", "dsengine")
    assert not any(each["recomputation"] == "selective" for each in candidates(*one)[:4])
    eager = candidates(*long, "--attention", "eager")
    assert not any(each["recomputation"] == "selective" for each in eager)


def candidates(*flags: str) -> list[dict[str, Any]]:
    return json.loads(tune(*flags, "--output-format", "json").stdout)["candidates"]


@pytest.mark.parametrize("columns", [80, 120])
def test_lines_fit_the_terminal(columns: int) -> None:
    assert max(map(len, tune(*EIGHT_B, "--all", columns=columns).stdout.splitlines())) <= columns


OFFLOADED = ("--model", "mistral-7b", "--gpus", "1", "--device", "h100", "--seq-len", "1024")


@pytest.mark.parametrize("batch", [(), ("--global-batch", "256")], ids=["any", "256"])
def test_first_candidate_is_fastest_per_sample(batch: tuple[str, ...]) -> None:
    """Each with its own largest batch: the host's part of a step is shared by its samples."""
    first, *others = candidates(*OFFLOADED, *batch)
    assert first["micro_batch"] > 8 and first["recomputation"] != "none" and not first["reason"]
    ruled_out = ("needs", "exceeds", "% free", "as fast", "the same")
    slower = [each for each in others if not any(why in each["reason"] for why in ruled_out)]
    for each in slower:
        ratio = each["seconds_per_sample"] / first["seconds_per_sample"]
        assert each["reason"].startswith(f"{ratio:.2f}x the time") and ratio > 1
    assert slower


def test_diagnostics_suggest_fastest_candidate(tmp_path: Path) -> None:
    """For a stage that holds no sample: not the offload that is quickest for a single one."""
    where = (*OFFLOADED, "--global-batch", "256")
    first = candidates(*where)[0]
    fixed = tmp_path / "ds.json"
    config: dict[str, Any] = {
        "train_batch_size": 256,
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
    }
    fixed.write_text(json.dumps(config))
    done = command_line.run("resolve", fixed, *where, "--runtime", "dsengine")
    output = " ".join((done.stdout + done.stderr).split())
    assert "DSC252" in output
    zero = first["config"]["zero_optimization"]
    assert f"stage {zero['stage']} with optimizer on cpu" in output
    assert ("together with" in output) == (first["recomputation"] != "none")

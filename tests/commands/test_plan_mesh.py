"""``plan`` draws the mesh of divided runs."""

import json
from pathlib import Path
from typing import Any

import pytest

import command_line

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}


@pytest.mark.parametrize(
    ("runtime", "config", "flags", "drawn"),
    [
        (
            "dsengine",
            {"sequence_parallel_size": 2},
            (),
            "4 shard x 2 sequence; ranks that share samples: 0-1, 2-3, 4-5, ...",
        ),
        ("dsengine", {}, (), ""),
        (
            "deepspeed",
            {"zero_optimization": {"stage": 1}},
            ("--pipeline-parallel", "2"),
            "2 pipeline x 4 shard; ranks that share samples: 0 4, 1 5, 2 6, ...",
        ),
        (
            "deepspeed",
            {"expert_parallel": {"enabled": True, "autoep_size": 4}},
            (),
            "2 expert_data x 4 expert; experts over: 0-3, 4-7",
        ),
    ],
)
def test_plan_draws_the_mesh(
    runtime: str, config: dict[str, Any], flags: tuple[str, ...], drawn: str, tmp_path: Path
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**CONFIG, **config}))
    done = command_line.run("plan", path, "--gpus", "8", "--runtime", runtime, *flags)
    assert done.returncode in (0, 1), done.stderr  # 1: a key that dsengine refuses
    lines = [line for line in done.stdout.splitlines() if line.startswith("mesh")]
    assert [" ".join(line.split()) for line in lines] == ([f"mesh {drawn}"] if drawn else [])


@pytest.mark.parametrize(
    ("stage", "drawn"),
    [(0, "shard over 1, replicate over 8"), (3, "shard over 8, replicate over 1")],
)
def test_ranks_of_a_sequence_share_states(stage: int, drawn: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    block = {"zero_optimization": {"stage": stage}, "sequence_parallel_size": 2}
    path.write_text(json.dumps({**CONFIG, **block}))
    assert drawn in command_line.run("plan", path, "--gpus", "8", "--runtime", "dsengine").stdout

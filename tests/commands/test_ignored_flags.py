"""A flag overridden by the file prints a note."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsconfig.commands.app import app

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "zero_optimization": {"stage": 2},
}
FACTS = ("--gpus", "8", "--model", "gpt2")


@pytest.mark.parametrize("command", ["plan", "estimate"])
@pytest.mark.parametrize(
    ("flags", "note"),
    [
        (("--micro-batch", "8"), "train_micro_batch_size_per_gpu is 4"),
        (("--global-batch", "64"), "train_batch_size is 32"),
        (("--precision", "fp16"), "--set bf16.enabled=false --set fp16.enabled=true"),
        (("--micro-batch", "4"), ""),
        ((), ""),
    ],
)
def test_flag_overridden_by_file_prints_note(
    command: str, flags: tuple[str, ...], note: str, tmp_path: Path
) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(CONFIG))
    done = CliRunner().invoke(app, [command, str(file), *FACTS, *flags])
    assert done.exit_code == 0, done.output
    assert note in done.stderr
    assert ("has no effect" in done.stderr) is bool(note)


@pytest.mark.parametrize("command", ["plan", "estimate"])
def test_deepspeed_release_affects_peak(command: str, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({**CONFIG, "data_types": {"grad_accum_dtype": "fp32"}}))
    peaks: list[int] = []
    for version in ("0.19.7", "0.19.8"):
        flags = ("--runtime", "deepspeed", "--deepspeed-version", version)
        json_too = (*FACTS, *flags, "--output-format", "json")
        done = CliRunner().invoke(app, [command, str(file), *json_too])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        phases = found["memory"] if command == "plan" else found["options"][0]["device"]
        peaks.append(phases["phases"]["backward"])
    assert peaks[0] < peaks[1]  # since 0.19.8 stage 2 accumulates gradients in fp32

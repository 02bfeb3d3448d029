"""Conversion of checkpoints to DeepSpeed's files and to safetensors."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import command_line
from dsengine.checkpoints import CheckpointError
from dsengine.checkpoints.deepspeed_layout.read import read_full
from dsengine.checkpoints.deepspeed_layout.write import write_checkpoint
from dsengine.loop import saving
from sweeps import sweep
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
RECORDINGS = Path(__file__).parents[1] / "oracle" / "deepspeed_checkpoints"
TORCH_ADAM = {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.01, "torch_adam": True}}
WARMUP = {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "warmup_max_lr": 3e-3}}


def settings(stage: int, precision: str = "fp32", **zero: Any) -> dict[str, Any]:
    return config(
        stage,
        2,
        bf16={"enabled": precision == "bf16"},
        optimizer=TORCH_ADAM,
        scheduler=WARMUP,
        zero=zero,
    )


@pytest.fixture(scope="module")
def deepspeed() -> Iterator[Ranks]:
    with Ranks(2) as running:
        yield running


class Saved:
    """Saves a checkpoint and returns the rest of its run."""

    def __init__(self, ranks: Ranks, folder: Path) -> None:
        self.ranks = ranks
        self.folder = folder

    def __call__(self, config: dict[str, Any]) -> dict[str, Any]:
        job = "training.jobs:saved_midway"
        return self.ranks.run(job, config=config, folder=str(self.folder))[0]


@pytest.fixture
def saved(ranks: Ranks, tmp_path: Path) -> Saved:
    return Saved(ranks, tmp_path / "ours")


def dsconfig(*arguments: str, code: int = 0) -> str:
    """Run ``dsconfig checkpoint`` and return its output."""
    done = command_line.run("checkpoint", *arguments, with_torch=True)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def convert(source: Path, target: Path, *flags: str) -> str:
    return dsconfig("convert", str(source), "--to", "deepspeed", "-o", str(target), *flags)


CASES = {
    "fp32": settings(0),
    **{f"stage {s} in {p}": settings(s, p) for s in (1, 2, 3) for p in ("fp32", "bf16")},
    "sub-groups": settings(3, sub_group_size=500),
    "round robin": settings(2, round_robin_gradients=True),
}


QUICK = ("fp32", "stage 1 in bf16", "stage 3 in bf16", "sub-groups")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in CASES],
)
def test_engine_saves_in_deepspeed_files(ranks: Ranks, tmp_path: Path, name: str) -> None:
    """They equal the output of ``convert``, and the engine can resume from them too."""
    job = "training.jobs:saved_in_both_forms"
    result = ranks.run(job, config=CASES[name], folder=str(tmp_path))[0]
    assert result["losses"] == pytest.approx(result["expected"], rel=1e-6)
    assert result["client"].items() >= {"epoch": 7}.items()
    convert(tmp_path / "ours", tmp_path / "converted")
    written = {path.name for path in (tmp_path / "theirs" / "global_step3").iterdir()}
    assert written == {path.name for path in (tmp_path / "converted" / "global_step3").iterdir()}
    assert {path.name for path in (tmp_path / "theirs").iterdir()} == {
        path.name for path in (tmp_path / "converted").iterdir()
    }
    one, other = read_full(tmp_path / "theirs"), read_full(tmp_path / "converted")
    assert (one.stage, one.world_size) == (other.stage, other.world_size)
    assert all(torch.equal(one.weights[n], w) for n, w in other.weights.items())
    assert one.counters == other.counters


def test_environment_selects_checkpoint_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(saving.FILES, "deepspeed")
    assert saving.requests_deepspeed_files()
    monkeypatch.setenv(saving.FILES, "torch")
    with pytest.raises(
        ValueError, match="DSENGINE_CHECKPOINTS is 'torch'; expected dsengine or deepspeed"
    ):
        saving.requests_deepspeed_files()


@pytest.mark.live
@pytest.mark.parametrize("name", CASES)
def test_deepspeed_resumes_from_converted_checkpoint(
    saved: Saved, deepspeed: Ranks, tmp_path: Path, name: str
) -> None:
    expected = saved(CASES[name])
    convert(saved.folder, tmp_path / "theirs")
    job = "training.live_jobs:resumed_by_deepspeed"
    got = deepspeed.run(job, config=CASES[name], folder=str(tmp_path / "theirs"), begin=3, steps=3)[
        0
    ]
    is_fp32 = "bf16" not in name
    assert got["losses"] == pytest.approx(expected["losses"], rel=1e-5 if is_fp32 else 5e-3)
    assert got["rate"] == pytest.approx(expected["rate"])
    assert got["client"].items() >= expected["client"].items()
    assert list(got["counted"]) == list(expected["counted"])


@pytest.mark.live
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_resumes_at_another_stage(
    saved: Saved, deepspeed: Ranks, tmp_path: Path, stage: int
) -> None:
    expected = saved(settings(4 - stage))
    convert(saved.folder, tmp_path / "theirs", "--stage", str(stage), "--ranks", "2")
    where = {"folder": str(tmp_path / "theirs"), "begin": 3, "steps": 3}
    got = deepspeed.run("training.live_jobs:resumed_by_deepspeed", config=settings(stage), **where)[
        0
    ]
    assert got["losses"] == pytest.approx(expected["losses"], rel=1e-5)


@pytest.mark.live
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_script_exports_the_same_weights(
    saved: Saved, deepspeed: Ranks, tmp_path: Path, stage: int
) -> None:
    saved(settings(stage, "bf16"))
    convert(saved.folder, tmp_path / "theirs", "--ranks", "3")
    job = "training.live_jobs:full_weights"
    theirs = deepspeed.run(job, folder=str(tmp_path / "theirs"))[0]
    ours = read_full(saved.folder)
    trained = {name for group in ours.group_names for name in group}
    assert set(theirs) == set(ours.weights)
    for name, weight in ours.weights.items():
        exact = name in trained or name in ours.tied
        expected = (
            weight if exact else weight.to(ours.dtype).float()
        )  # frozen weights have no master
        assert torch.equal(theirs[name], expected), name


RECORDED = [path.name for path in sorted(RECORDINGS.iterdir()) if path.name != "z0_fp32"]


@sweep(1, name=RECORDED, stage=[1, 2, 3], world_size=[1, 2, 5])
def test_written_checkpoint_reads_back_equal(
    tmp_path: Path, name: str, stage: int, world_size: int
) -> None:
    before = read_full(RECORDINGS / name)
    write_checkpoint(before, tmp_path, "step", stage, world_size)
    after = read_full(tmp_path)
    assert (after.stage, after.world_size) == (stage, world_size)
    assert after.weights.keys() == before.weights.keys()
    assert all(torch.equal(after.weights[n], w) for n, w in before.weights.items())
    for parameter, state in before.optimizer_states.items():
        for entry, value in state.items():
            assert torch.equal(after.optimizer_states[parameter][entry], value), parameter
    for part in ("groups", "lr_scheduler", "loss_scale", "counters", "client_state", "tied"):
        assert getattr(after, part) == getattr(before, part), part


def test_loss_scale_state_is_converted(tmp_path: Path) -> None:
    scale = {"cur_scale": 512.0, "cur_iter": 3, "last_overflow_iter": 1, "scale_window": 50}
    recorded = read_full(RECORDINGS / "z3_bf16")
    before = replace(recorded, dtype=torch.float16, loss_scale=scale)
    write_checkpoint(before, tmp_path, "step")
    assert read_full(tmp_path).loss_scale.items() >= scale.items()


@pytest.mark.parametrize("stage", [0, 3])
def test_own_checkpoint_round_trips_through_deepspeed_files(
    saved: Saved, tmp_path: Path, stage: int
) -> None:
    saved(settings(stage))
    before = read_full(saved.folder)
    assert set(before.buffers) == {"steps_seen"}
    convert(saved.folder, tmp_path / "theirs", "--ranks", "4")
    after = read_full(tmp_path / "theirs")
    assert all(torch.equal(after.weights[name], w) for name, w in before.weights.items())
    assert after.counters["global_steps"] == before.counters["global_steps"] == 3


def test_weights_convert_to_safetensors(saved: Saved, tmp_path: Path) -> None:
    saved(settings(2))
    out = tmp_path / "weights"
    where = ("convert", str(saved.folder), "--to", "safetensors", "-o", str(out))
    dsconfig(*where, "--precision", "bf16")
    assert "exists: choose another folder" in dsconfig(*where, code=1)
    weights = load_file(out / "model.safetensors")
    for name, weight in read_full(saved.folder).weights.items():
        assert torch.equal(weights[name], weight.bfloat16()), name


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--to", "deepspeed"], "convert requires --to deepspeed or --to safetensors, and -o DIR"),
        (["--to", "safetensors", "-o", "x", "--ranks", "2"], "does not take --ranks"),
        (["--to", "deepspeed", "-o", "x", "--precision", "bf16"], "does not take --precision"),
    ],
)
def test_flags_without_effect_are_refused(flags: list[str], message: str) -> None:
    assert message in dsconfig("convert", str(RECORDINGS / "z2_fp32"), *flags, code=2)


@pytest.mark.parametrize("form", ["deepspeed", "safetensors"])
def test_output_folder_that_is_a_file_is_reported(tmp_path: Path, form: str) -> None:
    file = tmp_path / "file"
    file.touch()
    output = dsconfig("convert", str(RECORDINGS / "z2_fp32"), "--to", form, "-o", str(file), code=2)
    assert output == f"dsconfig: error: {file}: File exists\n"


def test_unrepresentable_state_is_refused(tmp_path: Path) -> None:
    source = str(RECORDINGS / "z2_bf16")
    target = ("--to", "deepspeed", "-o", str(tmp_path))
    output = dsconfig("convert", source, *target, "--stage", "0", code=1)
    assert "cannot contain the fp32 master weights" in output
    dsconfig("convert", source, *target)
    assert "exists" in dsconfig("convert", source, *target, code=1)
    with pytest.raises(CheckpointError, match="does not map"):
        write_checkpoint(read_full(RECORDINGS / "z0_fp32"), tmp_path, "other", 2)


def test_recovery_scripts_export_full_weights(saved: Saved, tmp_path: Path) -> None:
    saved(settings(1))
    moved = shutil.copytree(saved.folder, tmp_path / "moved")
    for name, options in (("zero_to_fp32", ()), ("zero_to_torch", ("--dtype", "bf16"))):
        paths = (str(moved), str(tmp_path / name))
        command = [sys.executable, str(moved / f"{name}.py"), *paths, *options]
        subprocess.run(command, check=True)
    weights = read_full(moved).weights["tokens.weight"]
    for name, expected in (("zero_to_fp32", weights), ("zero_to_torch", weights.bfloat16())):
        written = torch.load(tmp_path / name / "pytorch_model.bin", weights_only=True)
        assert torch.equal(written["head.weight"], expected)

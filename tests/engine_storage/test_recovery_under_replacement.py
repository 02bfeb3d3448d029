"""The recovery scripts of DeepSpeed and dsengine while dsengine replaces deepspeed."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from training.jobs import config
from training.ranks import Ranks

pytestmark = [pytest.mark.engine, pytest.mark.live]
RECORDINGS = Path(__file__).parents[1] / "oracle" / "deepspeed_checkpoints"
RECORDED = sorted(path.name for path in RECORDINGS.iterdir() if path.name != "z0_fp32")
REPLACED = ("-m", "dsengine.as_deepspeed")
OUR_SCRIPT = ("-m", "deepspeed.utils.zero_to_fp32")

Weights = dict[str, torch.Tensor]


def their_script(folder: Path) -> str:
    """Copy DeepSpeed's script beside the checkpoint, as its engine does."""
    spec = find_spec("deepspeed")
    assert spec is not None and spec.submodule_search_locations
    script = Path(spec.submodule_search_locations[0]) / "utils" / "zero_to_fp32.py"
    return str(shutil.copy(script, folder / "zero_to_fp32_of_deepspeed.py"))


def weights(output: Path, *command: str) -> Weights:
    """Run a recovery script; return the weights that it writes to ``output``."""
    done = subprocess.run(
        [sys.executable, *command, str(output)],
        capture_output=True,
        text=True,
        env=os.environ | {"DS_ACCELERATOR": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    return torch.load(output / "pytorch_model.bin", weights_only=True)


def assert_same(first: Weights, second: Weights) -> None:
    assert first.keys() == second.keys() and len(first) > 3
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", RECORDED)
def test_both_scripts_read_files_of_deepspeed(tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(RECORDINGS / name, tmp_path / "saved"))
    script, source = their_script(folder), str(folder)
    real = weights(tmp_path / "real", script, source)
    assert_same(weights(tmp_path / "theirs", *REPLACED, script, source), real)
    ours = weights(tmp_path / "ours", *REPLACED, *OUR_SCRIPT, source)
    assert_same({key: ours[key] for key in real}, real)
    omitted = {"frozen"} if name.startswith("z1") else set[str]()  # by DeepSpeed at stage 1
    assert ours.keys() - real.keys() == omitted


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_both_scripts_read_files_of_dsengine(ranks: Ranks, tmp_path: Path, stage: int) -> None:
    settings = config(stage, bf16={"enabled": True})
    ranks.run("training.jobs:saved_in_both_forms", config=settings, folder=str(tmp_path))
    folder, native = tmp_path / "theirs", tmp_path / "ours"
    exported = weights(tmp_path / "a", *REPLACED, str(native / "zero_to_fp32.py"), str(native))
    for output, script in (
        ("b", (str(folder / "zero_to_fp32.py"),)),
        ("c", (their_script(folder),)),
        ("d", OUR_SCRIPT),
    ):
        assert_same(weights(tmp_path / output, *REPLACED, *script, str(folder)), exported)

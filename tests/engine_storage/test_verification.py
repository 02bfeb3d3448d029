"""`dsconfig checkpoint verify` reads all files and reports changed ones."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import typer
from torch import nn

from dsconfig.commands.checkpoint import Action, checkpoint
from dsengine.checkpoints import Checkpointer, TrainingState
from dsengine.checkpoints.manifest import MANIFEST

pytestmark = pytest.mark.engine


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = Checkpointer().save(TrainingState(module=nn.Linear(64, 64)), tmp_path, "step1")
    return path


Verified = Callable[..., tuple[int, str]]


@pytest.fixture
def verified(capsys: pytest.CaptureFixture[str]) -> Verified:
    """Return the command's exit code and output."""

    def run(folder: Path, tag: str | None = None) -> tuple[int, str]:
        code = 0
        try:
            checkpoint(Action.VERIFY, folder, tag)
        except typer.Exit as ended:
            code = ended.exit_code
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_intact_checkpoint_is_accepted(verified: Verified, saved: Path) -> None:
    assert verified(saved)[0] == verified(saved.parent)[0] == 0
    assert verified(saved.parent, "step1")[0] == 0


@pytest.mark.parametrize("name", ["__0_0.distcp", "training_state.pt", ".metadata"])
def test_changed_bit_in_any_file_is_detected(verified: Verified, saved: Path, name: str) -> None:
    data = bytearray((saved / name).read_bytes())
    data[len(data) // 2] ^= 1
    (saved / name).write_bytes(data)
    code, output = verified(saved)
    assert code == 1 and name in output and "have changed since they were written" in output


def test_checkpoint_without_checksums_is_not_accepted(verified: Verified, saved: Path) -> None:
    manifest = json.loads((saved / MANIFEST).read_text())
    del manifest["checksums"]
    (saved / MANIFEST).write_text(json.dumps(manifest))
    code, output = verified(saved)
    assert code == 1 and "without checksums" in output


def test_other_directory_is_not_a_checkpoint(verified: Verified, tmp_path: Path) -> None:
    code, output = verified(tmp_path)
    assert code == 1 and "not a dsengine checkpoint" in output


def test_folder_of_the_trainer_is_explained(tmp_path: Path, verified: Verified) -> None:
    trainer = tmp_path / "out"
    root = trainer / "checkpoint-6"
    Checkpointer().save(TrainingState(module=nn.Linear(4, 4)), root, "global_step6")
    code, printed = verified(trainer)
    assert code == 1 and f"did you mean {root}?" in printed


def test_checkpoint_of_deepspeed_is_explained(tmp_path: Path, verified: Verified) -> None:
    (tmp_path / "mp_rank_00_model_states.pt").touch()
    code, printed = verified(tmp_path)
    assert code == 1 and f"dsconfig checkpoint convert {tmp_path} --to safetensors" in printed

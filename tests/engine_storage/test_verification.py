"""`dsconfig checkpoint verify` reads everything and says what is not as it was written."""

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
    """The command's exit code, and all that it prints."""

    def run(folder: Path, tag: str | None = None) -> tuple[int, str]:
        code = 0
        try:
            checkpoint(Action.VERIFY, folder, tag)
        except typer.Exit as ended:
            code = ended.exit_code
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_a_whole_checkpoint_is_whole(verified: Verified, saved: Path) -> None:
    assert verified(saved)[0] == verified(saved.parent)[0] == 0
    assert verified(saved.parent, "step1")[0] == 0


@pytest.mark.parametrize("name", ["__0_0.distcp", "training_state.pt", ".metadata"])
def test_a_changed_bit_of_any_file_is_found(verified: Verified, saved: Path, name: str) -> None:
    data = bytearray((saved / name).read_bytes())
    data[len(data) // 2] ^= 1
    (saved / name).write_bytes(data)
    code, said = verified(saved)
    assert code == 1 and name in said and "have changed since they were written" in said


def test_what_was_saved_without_checksums_is_not_called_whole(
    verified: Verified, saved: Path
) -> None:
    manifest = json.loads((saved / MANIFEST).read_text())
    del manifest["checksums"]
    (saved / MANIFEST).write_text(json.dumps(manifest))
    code, said = verified(saved)
    assert code == 1 and "without checksums" in said


def test_what_is_no_checkpoint_is_said(verified: Verified, tmp_path: Path) -> None:
    code, said = verified(tmp_path)
    assert code == 1 and "not a dsengine checkpoint" in said

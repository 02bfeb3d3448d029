"""The commands in the tables of the README work, and the Chinese README shows the same ones."""

import re
import shutil
from pathlib import Path

import pytest

import guide_pages
from guide_pages import ROOT

README = (ROOT / "README.md").read_text("utf-8")
COMMAND = re.compile(r"^\| [^|]+ \| `(dsconfig [^`]+)` \|$", re.MULTILINE)
COMMANDS = COMMAND.findall(README)
CONFIG = (ROOT / "docs" / "images" / "ds.json").read_text("utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with every file that the commands name, except the checkpoint."""
    folder = tmp_path_factory.mktemp("readme")
    corrected = CONFIG.replace('overlap_com"', 'overlap_comm"')
    for name in ("ds.json", "old.json", "configs/ds_config.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(corrected)
    (folder / "new.json").write_text(corrected.replace('"stage": 3', '"stage": 2'))
    (folder / "args.json").write_text('{"bf16": true, "per_device_train_batch_size": 4}')
    shutil.copy(ROOT / "tests" / "oracle" / "logs" / "lack_in_backward.log", folder / "train.log")
    return folder


def test_readme_lists_commands() -> None:
    assert len(COMMANDS) >= 12


@pytest.mark.parametrize("command", COMMANDS)
def test_command_in_table_works(command: str, folder: Path) -> None:
    if "checkpoint" in command:
        pytest.skip("needs a checkpoint; tests/engine_storage/test_verification.py runs it")
    done = guide_pages.run_quickly(command, folder)
    assert done.returncode in (0, 1), done.stdout
    assert "Traceback" not in done.stdout


def test_chinese_readme_lists_the_same_commands() -> None:
    assert COMMAND.findall((ROOT / "README.zh-CN.md").read_text("utf-8")) == COMMANDS

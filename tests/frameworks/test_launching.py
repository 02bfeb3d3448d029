"""``accelerate launch`` with dsengine, with and without an installed DeepSpeed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frameworks.running import SCRIPTS, environment

pytestmark = [pytest.mark.live, pytest.mark.engine]
LAUNCH = (
    *("-m", "accelerate.commands.launch", "--use_deepspeed", "--zero_stage=2"),
    *("--num_processes=1", "--num_machines=1", "--main_process_port=0"),
    *("-m", "dsengine.as_deepspeed", str(SCRIPTS / "launched.py")),
)
HIDE_DEEPSPEED = """
import sys

class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "deepspeed":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Hidden)
"""


def launched(*command: str, paths: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env=environment(2) | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_launcher_starts_unmodified_scripts() -> None:
    output = launched(*LAUNCH, paths=environment(2)["PYTHONPATH"])
    assert "trained on dsengine.loop.engine at stage 2" in output


def test_launcher_works_without_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE_DEEPSPEED)
    paths = os.pathsep.join([str(tmp_path), environment(2)["PYTHONPATH"]])
    output = launched("-m", "dsengine.as_deepspeed", *LAUNCH, paths=paths)
    assert "trained on dsengine.loop.engine at stage 2" in output

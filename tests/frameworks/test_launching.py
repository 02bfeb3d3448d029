"""``accelerate launch`` with dsengine in the place of DeepSpeed, with and without it installed."""

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
HIDES = """
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


def test_its_launcher_starts_scripts_as_they_are() -> None:
    said = launched(*LAUNCH, paths=environment(2)["PYTHONPATH"])
    assert "trained on dsengine.loop.engine at stage 2" in said


def test_it_does_so_where_there_is_no_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDES)
    paths = os.pathsep.join([str(tmp_path), environment(2)["PYTHONPATH"]])
    said = launched("-m", "dsengine.as_deepspeed", *LAUNCH, paths=paths)
    assert "trained on dsengine.loop.engine at stage 2" in said

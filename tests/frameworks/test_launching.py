"""``accelerate launch`` with dsengine, with and without an installed DeepSpeed."""

import os
import sys
from pathlib import Path

import pytest

from frameworks.running import SCRIPTS, environment
from waiting import completed

pytestmark = [pytest.mark.live, pytest.mark.engine]
LAUNCH = (
    *("-m", "accelerate.commands.launch", "--use_deepspeed", "--zero_stage=2"),
    *("--num_processes=1", "--num_machines=1", "--main_process_port=0"),
)
SCRIPT = str(SCRIPTS / "launched.py")
HIDE_DEEPSPEED = """
import sys

class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "deepspeed":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Hidden)
"""
TRAINED = "trained on dsengine.loop.engine at stage 2"


def launched(*command: str, paths: str) -> str:
    variables = environment(2) | {"PYTHONPATH": paths, "DSENGINE": "required"}
    done = completed([sys.executable, *command], variables, 100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("around", "inside"),
    [
        (("-m", "dsengine"), ()),
        (("-m", "dsengine.as_deepspeed"), ()),
        ((), ("-m", "dsengine.as_deepspeed")),
    ],
)
def test_launcher_starts_unmodified_scripts(
    around: tuple[str, ...], inside: tuple[str, ...]
) -> None:
    paths = environment(2)["PYTHONPATH"]
    output = launched(*around, *LAUNCH, *inside, SCRIPT, paths=paths)
    assert TRAINED in output and "[Rank 0] dsengine replaces deepspeed" in output


def test_launcher_works_without_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE_DEEPSPEED)
    paths = os.pathsep.join([str(tmp_path), environment(2)["PYTHONPATH"]])
    assert TRAINED in launched("-m", "dsengine", *LAUNCH, SCRIPT, paths=paths)


def test_installed_deepspeed_is_replaced_in_grandchildren(tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    code = "import deepspeed.runtime.engine as engine; print(engine.DeepSpeedEngine)"
    shell = f"'{sys.executable}' -c '{code}'"
    script.write_text(f"import subprocess\nsubprocess.run({shell!r}, shell=True, check=True)\n")
    paths = environment(2)["PYTHONPATH"]
    assert "deepspeed.runtime.engine" in launched(str(script), paths=paths)
    assert "dsengine.loop.engine" in launched("-m", "dsengine", str(script), paths=paths)


def test_program_of_deepspeed_starts_dsengine(tmp_path: Path) -> None:
    installed = Path(sys.executable).parent / "deepspeed"
    if not installed.exists():
        pytest.skip("the program deepspeed is not installed")
    paths = environment(2)["PYTHONPATH"]
    assert "--no_ssh" in launched("-m", "dsengine", str(installed), "--help", paths=paths)
    script = tmp_path / "train.py"
    script.write_text("import deepspeed; print(deepspeed.__name__)")
    started = launched(
        *("-m", "dsengine", str(installed), "--num_gpus", "1", "--no_local_rank", str(script)),
        paths=paths,
    )
    assert started.splitlines()[-1] == "dsengine"

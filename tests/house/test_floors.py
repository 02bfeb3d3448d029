"""The minimum versions in pyproject.toml suffice for the command line."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.live
def test_minimum_dependency_versions_work(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = [requirement.replace(">=", "==") for requirement in project["dependencies"]]
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    installation = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", *lowest], capture_output=True, text=True
    )
    if installation.returncode:
        pytest.skip(f"cannot be installed here: {installation.stderr.splitlines()[-1]}")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "engine")])
    environment = os.environ | {"PYTHONPATH": paths}
    config = tmp_path / "ds.json"
    config.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}')
    schema = ("validate", str(config), "--output-format", "json")
    for command in (
        ("--help",),
        ("validate", "--help"),
        schema,
        ("resolve", str(config), "--gpus", "2"),
        ("plan", str(config), "--gpus", "2"),
        ("estimate", "--params", "13e9", "--gpus", "8"),
        ("doctor",),
    ):
        done = subprocess.run(
            [python, "-m", "dsconfig", *command],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == 0, (command, done.stderr)
    trains = [python, "-m", "dsconfig", "run", str(config), "--", __file__]
    done = subprocess.run(trains, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "dsconfig-zero[engine]" in done.stderr and len(done.stderr.splitlines()) == 1

"""Run ruff and pyright."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_ruff_check() -> None:
    run("ruff", "check", ".")


def test_ruff_format() -> None:
    run("ruff", "format", "--check", ".")


def test_pyright() -> None:
    # The frameworks' own annotations, if they are installed, produce errors in tests.
    sources = ("dsconfig", "engine/dsengine", "cli.py") if find_spec("deepspeed") else ()
    run("pyright", "--pythonpath", sys.executable, *sources)

"""Checks without pytest: style, types, generated files, and the build of the distribution."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from suite.parts import ROOT
from suite.results import Result

CHECKS = {
    "pyright": ["pyright", "--pythonpath", sys.executable],
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "generated files": ["suite.generated"],
    "distribution": ["suite.distribution"],
}
"""By name, a module and its arguments."""


def lint() -> Result:
    """Run all checks at the same time and print the output of those that fail."""
    began = monotonic()
    with TemporaryDirectory() as folder:
        outputs = {name: Path(folder) / name for name in CHECKS}
        running = {name: _start(name, outputs[name]) for name in CHECKS}
        failed = [name for name, process in running.items() if process.wait()]
        for name, output in outputs.items():
            print(f"{name}: {'failed' if name in failed else 'ok'}", flush=True)
            if name in failed:
                print(output.read_text("utf-8", "replace"), flush=True)
    return Result(
        "lint",
        monotonic() - began,
        code=int(bool(failed)),
        passed=len(CHECKS) - len(failed),
        failed=len(failed),
        failures=failed,
    )


def _start(name: str, output: Path) -> "subprocess.Popen[bytes]":
    with output.open("wb") as file:
        command = [sys.executable, "-m", *CHECKS[name]]
        return subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)

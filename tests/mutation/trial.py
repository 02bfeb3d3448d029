"""Run the tests of a mutant in a copy of the tree."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from mutation.recording import PYTEST, Recorded, environment
from mutation.sites import Mutant

FIRST = 25
"""Tests to run before the others are collected."""
ALLOWANCE = 60.0
SLOWER = 6.0
"""Time limit factor: a run may take ALLOWANCE plus SLOWER times its recorded seconds."""
STEP = 2
"""Seconds between the mtimes of file versions, by which bytecode is invalidated."""


@dataclass(frozen=True)
class Verdict:
    """``outcome``: killed, survived or unseen (no test runs the line)."""

    key: str
    where: str
    kind: str
    diff: str
    outcome: str
    by: str
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def copy_of(root: Path) -> Path:
    """Copy the tree's files, as listed by git, to a new folder."""
    copy = Path(tempfile.mkdtemp(prefix="mutation-"))
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if (root / name).is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "dsconfig", "engine", "tests"],
        cwd=copy, check=False, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return copy


class Sandbox:
    """A copy of the tree in which mutants are tested one after another."""

    def __init__(self, root: Path, recorded: Recorded) -> None:
        self.tree = copy_of(root)
        self.recorded = recorded
        self._ticks = 0

    def close(self) -> None:
        shutil.rmtree(self.tree, ignore_errors=True)

    def run(self, mutant: Mutant, *, quick: bool = False) -> Verdict:
        """Test a mutant. ``quick`` runs the first tests only, so survivors are not final."""
        begin = time.monotonic()
        tests = self.recorded.covering_tests(mutant)
        outcome, by = ("survived", "") if tests else ("unseen", "")
        file = self.tree / mutant.path
        source, stat = file.read_bytes(), file.stat()
        self._ticks += STEP
        try:
            file.write_bytes(mutant.applied(source))
            os.utime(file, (stat.st_atime, stat.st_mtime + self._ticks))
            for batch in (tests[:FIRST], () if quick else tests[FIRST:]):
                if batch and (by := self._killed_by(batch)):
                    outcome = "killed"
                    break
        finally:
            file.write_bytes(source)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        took = round(time.monotonic() - begin, 1)
        return Verdict(mutant.key, mutant.where, mutant.kind, mutant.diff, outcome, by, took)

    def _killed_by(self, tests: Sequence[str]) -> str:
        """Return what killed the mutant: a test, ``import`` or ``time``; "" if all pass."""
        chosen = self.tree / "chosen.json"
        chosen.write_text(json.dumps(tests))
        limit = ALLOWANCE + SLOWER * sum(self.recorded.seconds[test] for test in tests)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        process = subprocess.Popen(
            [*PYTEST, "-x", "-q", "--tb=no", "-rfE", "--hypothesis-seed=0", *files],
            cwd=self.tree,
            env=environment(self.tree) | {"MUTATION_CHOSEN": str(chosen)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "time"
        if process.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return ""
        for line in output.splitlines():
            if line.startswith("FAILED "):
                return line.removeprefix("FAILED ").partition(" - ")[0]
        if process.returncode == pytest.ExitCode.USAGE_ERROR:
            raise RuntimeError(output)
        return "import"

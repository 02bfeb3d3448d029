"""Running and classifying DeepSpeed's unit tests, and the page of outcomes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepspeed_tests.__main__ import PAGE, ROOT, page, recorded
from deepspeed_tests.outcomes import Outcome, read

CHECKOUT = os.environ.get("DEEPSPEED_CHECKOUT", "")
COMMON = """
import deepspeed, pytest

class DistributedExec:
    is_dist_test, world_size = True, 2
    def __call__(self, request):
        self.request = request
        self._launch_procs(self.world_size, "")
    def run(self):
        getattr(self, self.request.function.__name__)()
    def _dist_run(self, rank, count, port, init_method):
        self.rank = rank
        self.run()

class DistributedFixture(DistributedExec):
    is_dist_test, is_dist_fixture = False, True
"""
CONFTEST = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if getattr(item.cls, "is_dist_test", False):
        item.cls()(item._request)
        item.runtest = lambda: True
"""
TESTS = """
from deepspeed.pipe import PipelineModule
from deepspeed.internals import Buffer
import deepspeed, pytest
from unit.common import DistributedExec, DistributedFixture
from unit.util import bf16_required_version_check

class Mine(PipelineModule):
    pass

@pytest.mark.parametrize("stage", [Buffer.size, 3])
def test_passes(stage):
    assert deepspeed.__version__.partition("+")[2].startswith("dsengine")

def test_refused():
    Mine(layers=[])

def test_in_bf16():
    assert bf16_required_version_check()

def test_private():
    Buffer(3)

def test_of_nothing():
    getattr(None, "norm")

class TestRanks(DistributedExec):
    def test_passes(self):
        assert self.rank in (0, 1)
    def test_fails_on_one(self):
        assert self.rank == 0, "of rank 1"

class TestMany(DistributedExec):
    world_size = 4
    def test_passes(self):
        pass

class of_two_ranks(DistributedFixture):
    def run(self):
        with open(f"made_by_{self.rank}", "w"):
            pass

def test_with_a_fixture_of_ranks(of_two_ranks):
    with open("made_by_0"), open("made_by_1"):
        pass
"""


@pytest.mark.engine
@pytest.mark.long
def test_each_test_gets_one_kind(tmp_path: Path) -> None:
    for name, text in {
        "conftest.py": CONFTEST,
        "unit/__init__.py": "",
        "unit/common.py": COMMON,
        "unit/util.py": "bf16_required_version_check = bool",
        "unit/test_some.py": TESTS,
        "unit/test_none.py": "import pytest; pytest.skip(allow_module_level=True)",
    }.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "engine", ROOT / "tests"))),
        "DEEPSPEED_TESTS_RUNS": str(tmp_path / "runs"),
    }
    command = [sys.executable, "-m", "deepspeed_tests", "run", str(tmp_path)]
    for _ in range(2):  # the second run has nothing to do
        subprocess.run(command, env=environment, capture_output=True, check=True, cwd=tmp_path)
    file = tmp_path / "runs" / "dsengine.jsonl"
    assert len(file.read_text().splitlines()) == 10
    outcomes = read(file)
    assert outcomes.pop("test_none.py").kind == "skipped"
    found = {name.rpartition("test_some.py::")[2]: outcome for name, outcome in outcomes.items()}
    assert {name: outcome.kind for name, outcome in found.items()} == {
        "TestMany::test_passes": "skipped",
        "TestRanks::test_fails_on_one": "failed",
        "TestRanks::test_passes": "passed",
        "test_in_bf16": "passed",
        "test_of_nothing": "failed",
        "test_passes": "passed",
        "test_private": "private",
        "test_refused": "refused",
        "test_with_a_fixture_of_ranks": "passed",
    }
    assert found["test_private"].why == "internals.Buffer"
    assert "of rank 1" in found["TestRanks::test_fails_on_one"].why


def test_reclassified_failure_is_shown() -> None:
    outcome = Outcome("private", "a log", "AssertionError: its message")
    shown = page({"test_a.py::test_b": outcome, "test_a.py::test_c": Outcome("private", "name")})
    assert "| test_a.py::test_b | a log | AssertionError: its message |" in shown
    assert "| name | 1 | test_a.py: test_c |" in shown and "| a log | 1 |" not in shown


def test_page_matches_the_record() -> None:
    assert PAGE.read_text("utf-8") == page(recorded())


@pytest.mark.deep
@pytest.mark.engine
@pytest.mark.skipif(not CHECKOUT, reason="DEEPSPEED_CHECKOUT is not set to a checkout of DeepSpeed")
def test_recorded_passes_still_pass() -> None:
    """Takes hours; resumes from runs/deepspeed-tests."""
    command = [sys.executable, "-m", "deepspeed_tests", "run", CHECKOUT]
    subprocess.run(command, cwd=ROOT / "tests", check=True)
    now: dict[str, Outcome] = read(ROOT / "runs" / "deepspeed-tests" / "dsengine.jsonl")
    passed = [name for name, outcome in recorded().items() if outcome.kind == "passed"]
    assert [name for name in passed if now[name].kind != "passed"] == []

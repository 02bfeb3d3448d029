"""Running the frameworks' own tests of DeepSpeed, and checking for regressions."""

import os
import sys
from pathlib import Path

import pytest

from frameworks.running import SECONDS
from frameworks.their_tests import __main__ as their_tests
from frameworks.their_tests.__main__ import ROOT, SUITES, lost, page
from waiting import completed

pytestmark = [pytest.mark.live, pytest.mark.engine]
TESTS = """
import unittest
import deepspeed
from accelerate.test_utils.testing import require_non_cpu
from transformers import AutoModelForCausalLM, AutoTokenizer

@require_non_cpu
class Tests(unittest.TestCase):
    def test_of_a_model(self):
        model = AutoModelForCausalLM.from_pretrained("hf-internal-testing/tiny-random-gpt2")
        engine, *_ = deepspeed.initialize(model=model, config={"train_batch_size": 1})
        assert sum(p.numel() for p in engine.module.parameters()) < 1e6

    def test_of_words(self):
        tokenizer = AutoTokenizer.from_pretrained("patrickvonplaten/t5-tiny-random")
        found = tokenizer("some words", padding="max_length", max_length=16)["input_ids"]
        assert len(found) == 16 and found.count(tokenizer.pad_token_id) == 4

    def test_of_itself(self):
        assert deepspeed.__version__ == "0.19.8", "another release"

    def test_not_at_all(self):
        self.skipTest("never")
"""


def _run(framework: str, checkout: Path, seconds: float, **variables: str) -> None:
    paths = [ROOT, ROOT / "engine", ROOT / "tests", *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))} | variables
    command = [sys.executable, "-m", "frameworks.their_tests", "run", framework, str(checkout)]
    done = completed(command, environment, seconds)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_test_runs_with_both_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests" / "deepspeed").mkdir(parents=True)
    (tmp_path / "tests" / "deepspeed" / "test_some.py").write_text(TESTS)
    runs = tmp_path / "runs"
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    _run("accelerate", tmp_path, SECONDS, THEIR_TESTS_RUNS=str(runs), MASTER_PORT="0", **alone)
    monkeypatch.setattr(their_tests, "RUNS", runs)
    (name, outcome), *others = lost("accelerate").items()
    assert name.endswith("test_of_itself") and "another release" in outcome.why and not others
    written = page(["accelerate"])
    assert "| accelerate | 3 | 2 | 4 |" in written
    assert "test_of_itself | failed | passed | AssertionError: another release" in written
    assert "run transformers CHECKOUT" in written
    assert page([], written) == written


@pytest.mark.deep
@pytest.mark.parametrize("framework", SUITES)
def test_no_test_fails_with_dsengine_only(framework: str) -> None:
    """Takes half an hour; resumes from runs/their-tests."""
    checkout = os.environ.get(f"{framework.upper()}_CHECKOUT")
    if not checkout:
        pytest.skip(f"{framework.upper()}_CHECKOUT is not set to a checkout of {framework}")
    _run(framework, Path(checkout), seconds=4 * 3600)
    assert lost(framework) == {}

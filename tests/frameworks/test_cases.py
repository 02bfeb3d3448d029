"""Framework runs with dsengine compared with DeepSpeed."""

from pathlib import Path

import pytest

from frameworks import cases
from frameworks.cases import (
    CASES,
    ON_TWO_RANKS,
    PAGE,
    RECORDS,
    compared,
    page,
    run,
)
from frameworks.comparison import differing

pytestmark = [pytest.mark.live, pytest.mark.engine]
SOME = (
    *("trainer-0-fp32-config", "trainer-1-fp32-config", "trainer-3-fp32-config"),
    *("trainer-2-fp32-script", "trainer-3-bf16-config", "trainer-2-fp16-config"),
    *("trainer-3-fp32-config-gradient_checkpointing", "trainer-3-fp32-config-resumed"),
    *("trainer-3-fp32-config-resumed_from_deepspeed", "accelerate-3-fp32-file"),
    *("accelerate-2-bf16-fields", "accelerate-3-fp32-launcher", "trl-3-fp32-script-grpo"),
    *("peft-3-fp32-script-lora", "lightning-3-fp32-script"),
    *(case.name for case in ON_TWO_RANKS),
)
"""One of each kind, and the cases that the resumed ones require."""
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with results of some cases for both packages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "RUNS", tmp_path_factory.mktemp("frameworks"))
        run([BY_NAME[name] for name in SOME])
        return cases.RUNS


@pytest.mark.parametrize("name", SOME)
def test_run_equals_deepspeed(some: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "RUNS", some)
    case = BY_NAME[name]
    if not case.is_possible():
        pytest.skip(f"{case.framework} is not installed")
    found = compared(case)
    assert differing(found, case.precision) == [], found


def test_page_matches_the_record() -> None:
    assert PAGE.read_text("utf-8") == page(RECORDS.read())
    assert len(RECORDS.read()) == len(BY_NAME) == len(CASES) >= 40


@pytest.mark.deep
def test_all_runs_equal_deepspeed() -> None:
    """Resumes from runs/frameworks."""
    run(CASES)
    found = {case: compared(case) for case in CASES if case.is_possible()}
    wrong = [case for case, row in found.items() if differing(row, case.precision)]
    assert {case.name: found[case] for case in wrong} == {}

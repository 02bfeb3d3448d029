"""Framework runs with dsengine compared with DeepSpeed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from frameworks import cases
from frameworks.cases import BY_NAME, CASES, ON_TWO_RANKS, PAGE, RECORDS, Case, compared, page
from frameworks.comparison import PACKAGES, differing

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
NAMES = [
    *SOME,
    *(pytest.param(name, marks=pytest.mark.deep) for name in BY_NAME if name not in SOME),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for the results of this run; those of a sweep are kept in runs/frameworks."""
    return tmp_path_factory.mktemp("frameworks")


@pytest.fixture
def case(name: str, results: Path, request: pytest.FixtureRequest) -> Iterator[Case]:
    """Return the named case, whose results are stored in its folder meanwhile."""
    if not BY_NAME[name].is_possible():
        pytest.skip(f"{BY_NAME[name].framework} is not installed")
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("deep") is None:
            patch.setattr(cases, "RUNS", results)
        yield BY_NAME[name]


WAS_RUN: set[tuple[str, str]] = set()
"""Names and packages of the cases that have run here, with or without a result."""


def run(case: Case, package: str) -> None:
    WAS_RUN.add((case.name, package))
    cases.run(case, package)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", NAMES)
def test_case_runs(case: Case, package: str) -> None:
    run(case, package)
    assert cases.failure(case, package) == ""


@pytest.mark.parametrize("name", NAMES)
def test_run_equals_deepspeed(case: Case) -> None:
    for package in PACKAGES:
        if (case.name, package) not in WAS_RUN:
            run(case, package)
    found = compared(case)
    assert differing(found, case.precision) == [], found


def test_page_matches_the_record() -> None:
    assert PAGE.read_text("utf-8") == page(RECORDS.read())
    assert len(RECORDS.read()) == len(BY_NAME) == len(CASES) >= 40

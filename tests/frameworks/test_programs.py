"""Programs of others on two ranks, with dsengine compared with DeepSpeed.

The sweep resumes from runs/programs.
"""

import pytest

from frameworks.comparison import PACKAGES, differing
from frameworks.program_list import PROGRAMS, SETS, Program
from frameworks.programs import PAGE, RECORDS, compared, install, missing, page, run


def test_page_matches_the_record() -> None:
    assert PAGE.read_text("utf-8") == page(RECORDS.read())
    assert set(RECORDS.read()) == {program.name for program in PROGRAMS}


@pytest.mark.deep
@pytest.mark.live
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SETS)
def test_packages_are_installed(name: str) -> None:
    install(name)


@pytest.mark.deep
@pytest.mark.live
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program_runs(program: Program, package: str) -> None:
    if reason := missing(program):
        pytest.skip(reason)
    run(program, package)


@pytest.mark.deep
@pytest.mark.live
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_program_trains_as_on_deepspeed(program: Program) -> None:
    """Differences must have a remark; a failure must be the recorded one."""
    row, known = compared(program), RECORDS.read()[program.name]
    if differing(row, program.precision) and "skipped" not in row:
        assert row == known if "failed" in known else program.remark, row

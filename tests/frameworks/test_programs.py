"""Programs of others on two ranks, with dsengine compared with DeepSpeed."""

import pytest

from frameworks.programs import (
    PAGE,
    PROGRAMS,
    compared,
    differing,
    install,
    page,
    recorded,
    run,
)


def test_page_matches_the_record() -> None:
    assert PAGE.read_text("utf-8") == page(recorded())
    assert set(recorded()) == {program.name for program in PROGRAMS}


@pytest.mark.deep
@pytest.mark.live
def test_programs_train_as_on_deepspeed() -> None:
    """Resumes from runs/programs."""
    install()
    run(PROGRAMS)
    found = {program: compared(program) for program in PROGRAMS}
    wrong = {program.name: row for program, row in found.items() if differing(program, row)}
    assert wrong == {name: recorded()[name] for name in wrong if "failed" in recorded()[name]}

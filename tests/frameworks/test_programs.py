"""Programs of others on two ranks, with dsengine compared with DeepSpeed."""

import pytest

from frameworks.comparison import differing
from frameworks.programs import PAGE, PROGRAMS, RECORDS, compared, install, page, run


def test_page_matches_the_record() -> None:
    assert PAGE.read_text("utf-8") == page(RECORDS.read())
    assert set(RECORDS.read()) == {program.name for program in PROGRAMS}


@pytest.mark.deep
@pytest.mark.live
def test_programs_train_as_on_deepspeed() -> None:
    """Resumes from runs/programs."""
    install()
    run(PROGRAMS)
    found = {program: compared(program) for program in PROGRAMS}
    wrong = {p.name: row for p, row in found.items() if differing(row, p.precision)}
    known = RECORDS.read()
    skipped = {name: row for name, row in wrong.items() if "skipped" in row}
    explained = {p.name: wrong[p.name] for p in PROGRAMS if p.remark and p.name in wrong}
    failed = {name: known[name] for name in wrong if "failed" in known[name]}
    assert wrong == skipped | explained | failed

"""Every planted race is found, with the source lines of both operations."""

from pathlib import Path

import pytest

from streams.cases import run
from streams.planted import PLANTED, Planted, replaced_line

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_planted_race_is_found_with_both_lines(planted: Planted, tmp_path: Path) -> None:
    with replaced_line(planted):
        machine = run(
            planted.config,
            tmp_path,
            planted.loops,
            planted.model,
            changed_sizes=planted.sizes,
        )
    earlier, later = planted.lines
    found = [race for race in machine.races if earlier in race.earlier and later in race.later]
    assert found, "\n".join(map(str, machine.races)) or "no race was found"

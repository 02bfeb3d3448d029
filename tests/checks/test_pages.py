"""The pages in docs/rules are what the rules say of themselves."""

from pathlib import Path

import pytest

from dsconfig.checks import rules
from dsconfig.checks.page import pages

FOLDER = Path(__file__).parents[2] / "docs" / "rules"
PAGES = pages()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_is_up_to_date(name):
    """`python -m dsconfig.checks.page docs/rules` writes them."""
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name]


def test_there_is_no_page_of_a_rule_that_is_gone():
    assert {path.name for path in FOLDER.glob("*.md")} == set(PAGES)


def test_every_page_shows_what_its_rule_says():
    for code in rules():
        assert "\n> " in PAGES[f"{code}.md"], code

"""The pages in docs/rules are what the rules say of themselves."""

from pathlib import Path

from dsconfig.checks.page import pages
from dsconfig.checks.registry import rules

FOLDER = Path(__file__).parents[2] / "docs" / "rules"
PAGES = pages()


def test_every_page_shows_what_its_rule_says():
    for code in rules():
        assert "\n> " in PAGES[f"{code}.md"], code

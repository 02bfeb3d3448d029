"""Pages of the rules, installed with the package; `dsconfig explain CODE` prints them."""

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("rules")


def url(code: str) -> str:
    """Return the file URI of the page of a rule, which resolves without a network."""
    return (FOLDER / f"{code}.md").as_uri()


@cache
def text(code: str) -> str:
    """Return the page of a rule as Markdown; empty if there is none."""
    try:
        return (FOLDER / f"{code}.md").read_text("utf-8")
    except OSError:
        return ""

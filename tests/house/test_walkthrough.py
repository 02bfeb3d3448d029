"""The walkthrough names files and definitions that are there."""

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "walkthrough.md"
STOPS = re.findall(r"\[`(\w+)`\]\(([^)]+)\)", PAGE.read_text())


def defined_in(path: Path) -> set[str]:
    """Names that a file defines, or takes from another, at its top level."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Assign():
                names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.ImportFrom():
                names |= {each.asname or each.name for each in node.names}
            case _:
                pass
    return names


@pytest.mark.parametrize(("name", "link"), STOPS, ids=[f"{link}:{name}" for name, link in STOPS])
def test_a_stop_is_where_the_page_says(name: str, link: str) -> None:
    assert name in defined_in((PAGE.parent / link).resolve())


def test_both_ways_are_long_enough_to_be_followed() -> None:
    rooms = {link.split("/")[3] for _, link in STOPS if link.startswith("../../dsconfig/")}
    assert {"source", "schema", "checks", "resolver", "runtimes", "cost", "planner"} <= rooms
    assert sum(link.startswith("../../engine/") for _, link in STOPS) >= 8

"""The walkthrough links to files and definitions that exist."""

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "walkthrough.md"
LINKS = re.findall(r"\[`(\w+)`\]\(([^)]+)\)", PAGE.read_text("utf-8"))


def defined_in(path: Path) -> set[str]:
    """Return the names that a file defines or imports at its top level."""
    names: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Assign():
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.ImportFrom():
                names |= {alias.asname or alias.name for alias in node.names}
            case _:
                pass
    return names


@pytest.mark.parametrize(("name", "link"), LINKS, ids=[f"{link}:{name}" for name, link in LINKS])
def test_linked_name_is_defined(name: str, link: str) -> None:
    assert name in defined_in((PAGE.parent / link).resolve())


def test_both_paths_cover_the_packages() -> None:
    packages = {link.split("/")[3] for _, link in LINKS if link.startswith("../../dsconfig/")}
    assert {"source", "schema", "checks", "resolver", "runtimes", "cost", "planner"} <= packages
    assert sum(link.startswith("../../engine/") for _, link in LINKS) >= 8

"""The dialect files, their expressions, and the names these use."""

import ast
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "dsconfig/facts/dialects"
DIALECTS = {
    path.stem: tomllib.loads(path.read_text())
    for path in sorted(FOLDER.glob("*.toml"))
    if path.stem != "defaults"
}


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a table with dotted keys in place of nested tables."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        deeper = isinstance(value, dict)
        found |= flat(value, f"{prefix}{key}.") if deeper else {prefix + key: value}
    return found


def expressions(dialect: dict[str, Any]) -> dict[str, str]:
    """Return every expression of a dialect by its place in the file."""
    launch = {
        key: text for key, text in dialect["launch"].items() if key in ("ranks", "ranks_when")
    }
    blocks = {"launch": launch}
    for block in ("facts", "ds_config"):
        blocks[block] = dialect.get(block, {})
        for name, variant in dialect.get("variants", {}).items():
            blocks[f"variants.{name}.{block}"] = variant.get(block, {})
    return flat(blocks)


def names(text: str) -> set[str]:
    """Return the names an expression reads; ``a.b`` is one name."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Attribute | ast.Name):
            found.add(ast.unparse(node))
        for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
            if not isinstance(node, ast.Attribute):
                visit(child)

    visit(ast.parse(text, mode="eval"))
    return found


def names_used(dialect: dict[str, Any]) -> set[str]:
    """Return the names that the expressions of a dialect read, with the facts of those below."""
    texts, below = expressions(dialect), dialect["built_on"]
    while below:
        texts = expressions(DIALECTS[below]) | texts
        below = DIALECTS[below]["built_on"]
    return set[str]().union(*map(names, texts.values()))

"""The dialect files: their form, and that every expression uses only what the reader evaluates."""

import ast
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "dsconfig/facts/dialects"
DIALECTS = {
    path.stem: tomllib.loads(path.read_text())
    for path in sorted(FOLDER.glob("*.toml"))
    if path.stem != "defaults"
}
CALLS = {"max", "min", "ceil", "int", "len", "lower", "startswith", "endswith"}
NODES = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div,
    ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.IfExp, ast.Call,
    ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.List, ast.Load,
)  # fmt: skip


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return found


def expressions(dialect: dict[str, Any]) -> dict[str, str]:
    launch = {
        f"launch.{key}": dialect["launch"][key]
        for key in ("ranks", "ranks_when")
        if key in dialect["launch"]
    }
    variants: dict[str, str] = {}
    for name, variant in dialect.get("variants", {}).items():
        for block in ("facts", "ds_config"):
            variants |= {
                f"variants.{name}.{block}.{key}": text
                for key, text in flat(variant.get(block, {})).items()
            }
    facts = {f"facts.{key}": text for key, text in dialect.get("facts", {}).items()}
    return (
        launch
        | variants
        | facts
        | {f"ds_config.{key}": text for key, text in flat(dialect.get("ds_config", {})).items()}
    )


def dotted(node: ast.expr) -> str:
    return (
        f"{dotted(node.value)}.{node.attr}"
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )


def names(text: str) -> set[str]:
    """Return the names an expression reads; ``a.b`` is one name."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Attribute | ast.Name):
            found.add(dotted(node))
        elif isinstance(node, ast.Call):
            for argument in node.args:
                visit(argument)
        else:
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(ast.parse(text, mode="eval"))
    return found


@pytest.mark.parametrize("name", DIALECTS)
def test_expressions_use_the_subset(name: str) -> None:
    for place, text in expressions(DIALECTS[name]).items():
        for node in ast.walk(ast.parse(text, mode="eval")):
            assert isinstance(node, NODES), f"{place}: {ast.dump(node)}"
            if isinstance(node, ast.Call):
                assert isinstance(node.func, ast.Name) and node.func.id in CALLS, (
                    f"{place}: {ast.unparse(node)}"
                )


@pytest.mark.parametrize("name", DIALECTS)
def test_facts_are_not_circular(name: str) -> None:
    facts = DIALECTS[name].get("facts", {})

    def visit(fact: str, above: tuple[str, ...]) -> None:
        assert fact not in above, f"{name}: {' -> '.join((*above, fact))}"
        for used in names(facts[fact]) & facts.keys() - {fact}:
            visit(used, (*above, fact))

    for fact in facts:
        visit(fact, ())


@pytest.mark.parametrize("name", DIALECTS)
def test_irrelevant_keys_are_not_used(name: str) -> None:
    dialect = DIALECTS[name]
    used = set[str]().union(*map(names, expressions(dialect).values())) - {
        "script",
        "variant",
        "release",
        "env",
        "deepspeed",
        "devices",
    }
    patterns = dialect["irrelevant"]["keys"]
    assert patterns == sorted(patterns)
    for key in used:
        assert not [pattern for pattern in patterns if fnmatch(key, pattern)], key


@pytest.mark.parametrize("name", DIALECTS)
def test_launch_is_complete(name: str) -> None:
    dialect = DIALECTS[name]
    assert {
        "title",
        "package",
        "newest",
        "built_on",
        "launch",
        "facts",
        "irrelevant",
    } <= dialect.keys()
    assert dialect["launch"]["style"] in ("hf", "argparse", "hydra", "python", "click")
    assert not dialect["built_on"] or dialect["built_on"] in DIALECTS
    assert {
        "commands",
        "modules",
        "scripts",
        "keys",
        "config",
        "config_wins",
        "environment_block",
        "deepspeed",
    } <= dialect["launch"].keys()

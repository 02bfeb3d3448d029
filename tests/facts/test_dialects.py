"""The dialect files: their form, and that every expression uses only what the reader evaluates."""

import ast
import json
import tomllib
from fnmatch import fnmatch

import pytest

from facts.dialect_names import DIALECTS, FOLDER, expressions, names

CALLS = {"max", "min", "ceil", "int", "len", "lower", "startswith", "endswith"}
NODES = (ast.Expression, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.IfExp, ast.Call)
LEAVES = (ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.List, ast.expr_context)
OPERATORS = (ast.boolop, ast.Not, ast.USub, ast.operator, ast.cmpop)
GIVEN = {"script", "variant", "release", "env", "deepspeed", "devices"}
LAUNCH = {"commands", "modules", "scripts", "keys", "config", "config_wins", "style"}


@pytest.mark.parametrize("name", DIALECTS)
def test_expressions_use_the_subset(name: str) -> None:
    for place, text in expressions(DIALECTS[name]).items():
        for node in ast.walk(ast.parse(text, mode="eval")):
            assert isinstance(node, NODES + LEAVES + OPERATORS), f"{place}: {ast.dump(node)}"
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) in CALLS, f"{place}: {ast.unparse(node)}"


@pytest.mark.parametrize("name", DIALECTS)
def test_facts_are_not_circular(name: str) -> None:
    base = DIALECTS[name]["built_on"]
    inherited = DIALECTS[base].get("facts", {}) if base else {}
    own = inherited | DIALECTS[name].get("facts", {})
    variants = DIALECTS[name].get("variants", {}).values()
    for facts in (own, *(own | variant.get("facts", {}) for variant in variants)):

        def visit(fact: str, above: tuple[str, ...], facts: dict[str, str] = facts) -> None:
            assert fact not in above, " -> ".join((*above, fact))
            for used in names(facts[fact]) & facts.keys() - {fact}:
                visit(used, (*above, fact))

        for fact in facts:
            visit(fact, ())


@pytest.mark.parametrize("name", DIALECTS)
def test_irrelevant_keys_are_sorted_and_not_used(name: str) -> None:
    used = set[str]().union(*map(names, expressions(DIALECTS[name]).values())) - GIVEN
    patterns = DIALECTS[name]["irrelevant"]["keys"]
    assert patterns == sorted(set(patterns))
    for key in used:
        assert not [pattern for pattern in patterns if fnmatch(key, pattern)], key


@pytest.mark.parametrize("name", DIALECTS)
def test_files_are_complete(name: str) -> None:
    dialect = DIALECTS[name]
    assert {"title", "package", "newest", "reader", "built_on"} <= dialect.keys()
    assert LAUNCH | {"environment_block", "deepspeed"} <= dialect["launch"].keys()
    assert dialect["launch"]["style"] in ("hf", "argparse", "hydra", "python", "click")
    assert dialect["reader"] in ("", "deepspeed", "transformers", "accelerate")
    assert dialect["built_on"] in {"", *DIALECTS}


def test_programs_are_recognized_by_keys_of_their_own() -> None:
    listed = [key for dialect in DIALECTS.values() for key in dialect["launch"]["keys"]]
    assert len(listed) == len(set(listed))
    scripts = [script for dialect in DIALECTS.values() for script in dialect["launch"]["scripts"]]
    assert len(scripts) == len(set(scripts))


@pytest.mark.parametrize("name", DIALECTS)
def test_shipped_configs_are_json(name: str) -> None:
    for text in DIALECTS[name].get("configs", {}).values():
        assert "zero_optimization" in json.loads(text)


def test_defaults_name_dialects_and_variants() -> None:
    for table in tomllib.loads((FOLDER / "defaults.toml").read_text()):
        name, _, variant = table.partition("/")
        assert not variant or variant in DIALECTS[name]["variants"], table

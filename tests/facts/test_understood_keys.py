"""Every key that a dialect understands decides something: a fact's value, or its origin."""

import ast
import random
from collections.abc import Iterator
from typing import Any

import pytest

from dsconfig.facts import dialects
from dsconfig.facts.dialects import Dialect
from dsconfig.facts.launch_facts import FILE, FLAG, LaunchedKeys, Origin, Sourced
from dsconfig.source.expressions import names_in

CONTEXTS = 400
"""Sets of other keys that are tried for each key."""
VALUES = (True, False, 4, 16)
PROGRAMS = [
    (program, variant)
    for program in dialects.dialects()
    for variant in program.variants or ("",)
    if len(program.names(variant)) > 1
]


def constants(node: ast.AST) -> Iterator[Any]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant):
            yield inner.value


def compared(program: Dialect, variant: str) -> dict[str, list[Any]]:
    """Return the values that expressions compare each key with."""
    found: dict[str, list[Any]] = {}
    texts = [*program.facts(variant).values(), *program.ds_config.values()]
    for text in (*texts, program.launch.get("ranks", "None")):
        for node in ast.walk(ast.parse(text, mode="eval")):
            if isinstance(node, ast.Compare):
                values = [value for each in node.comparators for value in constants(each)]
                found.setdefault(ast.unparse(node.left), []).extend(values)
                for each in node.comparators:
                    lists = [[value] for value in constants(node.left)]
                    found.setdefault(ast.unparse(each), []).extend(lists)
    return found


def decided(
    program: Dialect, variant: str, release: str, script: str, keys: dict[str, Any]
) -> dict[str, Any]:
    """Return each fact with its origin, and what a ds_config that the program builds contains."""
    written = {key: Sourced(value, Origin(FILE, key)) for key, value in keys.items()}
    variables = {key.removeprefix("env."): each for key, each in written.items()}
    ranks = {"ranks": Sourced(8, Origin(FLAG, "--gpus"))}
    launched = LaunchedKeys(program, variant, release, written, variables, ranks, script)
    texts = {"ranks": program.launch.get("ranks", "None"), **program.ds_config}
    found: dict[str, Any] = {}
    for name in launched.expressions:
        found[name] = value_of(launched, name)
    for name, text in texts.items():
        try:
            found[f"{name}."] = launched.evaluate(text)
        except (TypeError, AttributeError, ValueError, ZeroDivisionError):
            found[f"{name}."] = "invalid"
    return found


def value_of(launched: LaunchedKeys, name: str) -> Any:
    try:
        return launched.fact(name)
    except (TypeError, AttributeError, ValueError, ZeroDivisionError):
        return "invalid"


def is_decisive(program: Dialect, variant: str, key: str, pool: dict[str, list[Any]]) -> bool:
    chance = random.Random(key)
    texts = [*program.facts(variant).values(), *program.ds_config.values()]
    texts = [text for text in (*texts, program.launch.get("ranks", "None")) if key in text]
    near = sorted({name for text in texts for name in names_in(text)} - {key})
    others = sorted(program.names(variant) - {key})
    releases, scripts = ("0.1.0", program.newest), ["", *pool.get("script", [])]
    for number in range(CONTEXTS):
        listed = near if number % 2 else others
        chosen = chance.sample(listed, min(len(listed), number % 7))
        keys = {name: chance.choice([*pool.get(name, []), *VALUES]) for name in chosen}
        value = chance.choice([*pool.get(key, []), *VALUES])
        place = (program, variant, chance.choice(releases), chance.choice(scripts))
        if decided(*place, {**keys, key: value}) != decided(*place, keys):
            return True
    return False


@pytest.mark.parametrize(
    ("program", "variant"), PROGRAMS, ids=[f"{each.name}-{name}" for each, name in PROGRAMS]
)
def test_every_understood_key_decides_a_fact(program: Dialect, variant: str) -> None:
    pool = compared(program, variant)
    facts = program.facts(variant)
    given = {"script", "variant", "release", "deepspeed", "devices", "ranks"}
    given |= {name for name, text in facts.items() if name not in names_in(text)}
    given |= {*program.launch.get("deepspeed", ())}
    keys = sorted(key for key in program.names(variant) - given if not key.startswith("env."))
    assert [key for key in keys if not is_decisive(program, variant, key, pool)] == []

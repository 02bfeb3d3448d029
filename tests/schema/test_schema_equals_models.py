"""JSON Schema and strict models accept the same values."""

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema
from pydantic import ValidationError

from dsconfig.schema import DSConfig, ErrorKind, KeyStatus, SchemaError, errors, find, strict_at
from dsconfig.schema.declare import Block
from dsconfig.schema.json_schema import COMMENT_KEYS, json_schema
from dsconfig.schema.version import NEWEST
from property_settings import without_health_checks

ORACLE = Path(__file__).parent.parent / "oracle"
SCHEMA = json_schema()
BLOCKS = sorted(SCHEMA["definitions"])
ROOT = "the root"


@cache
def validator_of(block: str) -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(schema_of(block))


def schema_of(block: str) -> dict[str, Any]:
    """The schema of one block by itself, with the definitions it needs."""
    needed: dict[str, Any] = {}
    waiting = [block]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = SCHEMA["definitions"][name]
            waiting += re.findall(r"#/definitions/([\w.]+)", str(needed[name]))
    return (
        {**needed.pop(block), "definitions": needed} if needed else {**SCHEMA["definitions"][block]}
    )


def model_of(block: str) -> type[Block]:
    module, name = block.split(".")
    return getattr(import_module(f"dsconfig.schema.blocks.{module}"), name)


def accepted(model: type[Block], value: Any) -> bool:
    try:
        model.model_validate(value)
    except ValidationError:
        return False
    return True


ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**12, 2.0, 5e8, 0.5, 1.5, -0.1, 1e30]),
    st.sampled_from(["auto", "cpu", "NVME", "fp16", "BF16", "adamw", "Warn", "1", ""]),
    st.text(max_size=3),
    st.lists(st.sampled_from([0.9, 1, "auto", None]), max_size=3),
    st.just({}),
)


@cache
def mappings(block: str) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with names of the block and a few others, and values of any kind."""
    definition = SCHEMA["definitions"][block]
    properties = definition["properties"]
    names = st.sampled_from([*properties, "unknown"])
    words = [word for key in properties.values() for word in _words(key)]
    values = ATOMS | st.sampled_from(words) if words else ATOMS
    required = dict.fromkeys(definition.get("required", []), values)
    return st.builds(
        lambda first, rest: {**rest, **first},
        st.fixed_dictionaries(required),
        st.dictionaries(names, values, max_size=4),
    )


def _words(key: dict[str, Any]) -> list[Any]:
    branches = key.get("anyOf", [key])
    return [word for branch in branches for word in branch.get("enum", [])]


ONE_OF_EACH: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 8, 10**12),
    *(0.0, 1.0, 2.0, 8.0, 5e8, 0.5, 1.5, -0.1),
    *("", "auto", "0", "1", "true", "cpu", "CPU", "fp16", "FP16", "Warn", "mean", "z1"),
    *([], [0.9, 0.999], [1, 2, 3], [None, 0.1], ["z1"], ["auto"], [[1]], [{}]),
    *({}, {"x": 1}, {"enabled": 1}),
]


@pytest.mark.parametrize("block", [ROOT, *BLOCKS])
def test_schema_and_model_agree_on_each_key(block: str) -> None:
    schema = SCHEMA if block == ROOT else schema_of(block)
    model = DSConfig if block == ROOT else model_of(block)
    validator = jsonschema.Draft7Validator(schema)
    differing = [
        (name, value)
        for name in schema["properties"]
        for value in ONE_OF_EACH
        if _faulty(validator, name, value) != _refused(model, name, value)
    ]
    assert differing == []


def _faulty(validator: Any, name: str, value: Any) -> bool:
    """Whether the schema finds a fault in or below a key, apart from what is missing."""
    return any(
        fault.path and fault.path[0] == name for fault in validator.iter_errors({name: value})
    )


def _refused(model: type[Block], name: str, value: Any) -> bool:
    try:
        model.model_validate({name: value})
    except ValidationError as error:
        return any(fault["loc"][0] == name for fault in error.errors())
    return False


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("examples", [12, pytest.param(400, marks=pytest.mark.deep)])
def test_schema_and_model_agree_on_any_object(block: str, examples: int) -> None:
    @settings(max_examples=examples)
    @given(mappings(block))
    def check(value: dict[str, Any]) -> None:
        assert accepted(model_of(block), value) == validator_of(block).is_valid(value)

    check()


def generated_from(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema allows; what is no mapping is made by hypothesis-jsonschema."""
    if "$ref" in schema:
        return st.deferred(lambda: block_from(schema["$ref"].removeprefix("#/definitions/")))
    if "anyOf" in schema:
        return st.one_of([generated_from(branch) for branch in schema["anyOf"]])
    if "allOf" in schema:
        return generated_from(schema["allOf"][0])
    if schema.get("type") == "array" and "$ref" in schema.get("items", {}):
        return st.lists(generated_from(schema["items"]), max_size=2)
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties", True)
        values = generated_from(inner) if isinstance(inner, dict) else ATOMS
        return st.dictionaries(st.text(max_size=3), values, max_size=2)
    if not schema.keys() & {"type", "enum", "const", "not"}:
        return ATOMS
    return from_schema(schema)


@cache
def block_from(block: str) -> st.SearchStrategy[Any]:
    """Values of a block: its required keys, some of the others, arguments of its type."""
    definition = SCHEMA["definitions"][block]
    conditions = definition.get("allOf", [])
    aliases = {part["not"]["required"][1] for part in conditions if "not" in part}
    left_out = aliases | {"params", "type"} if _branches(block) else aliases
    keys = {
        name: generated_from(key)
        for name, key in definition["properties"].items()
        if name not in left_out and key.get("not") != {}
    }
    required = {name: keys.pop(name) for name in definition.get("required", []) if name in keys}
    mapping = st.fixed_dictionaries(required, optional=keys)
    branches = [_with_arguments(mapping, *branch) for branch in _branches(block)]
    return st.one_of(branches) if branches else mapping


def _branches(block: str) -> list[tuple[str, dict[str, Any]]]:
    """The types of a block, with the schema of their arguments; those that text can hold."""
    definition = SCHEMA["definitions"][block]
    conditions = [part for part in definition.get("allOf", []) if "if" in part]
    if not conditions:
        return []
    names = definition["properties"]["type"]["anyOf"][0]["enum"]
    params = [part["then"]["properties"]["params"] for part in conditions]
    return [pair for pair in zip(names, params, strict=True) if pair[0] not in PROGRAMS_ONLY]


def _with_arguments(
    mapping: st.SearchStrategy[dict[str, Any]], name: str, params: dict[str, Any]
) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda rest, arguments: {**rest, "type": name, "params": arguments},
        mapping,
        generated_from(params),
    )


PROGRAMS_ONLY = {"ChainedScheduler", "LambdaLR", "MultiplicativeLR", "SequentialLR"}
"""Schedules that take functions or other schedules, which no text can hold."""


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.split(".")[1] not in PROGRAMS_ONLY])
@pytest.mark.parametrize("examples", [5, pytest.param(100, marks=pytest.mark.deep)])
def test_model_accepts_values_generated_from_schema(block: str, examples: int) -> None:
    @without_health_checks(examples)
    @given(block_from(block))
    def check(value: Any) -> None:
        assert validator_of(block).is_valid(value)
        assert accepted(model_of(block), value)

    check()


def accepted_by_models(config: dict[str, Any]) -> bool:
    """The models hold the keys of all releases: what the newest does not read is a fault too."""
    faults = [error for error in errors(config) if not _is_tolerated_remark(error)]
    return not faults and not list(_unread(config, ()))


def _is_tolerated_remark(error: SchemaError) -> bool:
    *block, name = error.pointer.split("/")[1:]
    if error.kind is not ErrorKind.UNKNOWN or not re.match(COMMENT_KEYS, name):
        return False
    key = find(block) if block else None
    return not strict_at(key.path if key else "", NEWEST)


def _unread(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    key = find(path) if path else None
    if key is not None and key.status not in (KeyStatus.LIVE, KeyStatus.EXTERNAL):
        yield path
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _unread(part, (*path, name))


MEASURED = [
    case["config"]
    for case in json.loads((ORACLE / "bad_configs.json").read_text())
    if isinstance(case.get("config"), dict) and "__float__" not in json.dumps(case["config"])
]


def test_schema_and_model_agree_on_measured_configs() -> None:
    validator = jsonschema.Draft7Validator(SCHEMA)
    differing = [
        config for config in MEASURED if validator.is_valid(config) != accepted_by_models(config)
    ]
    assert len(MEASURED) > 150
    assert differing == []

"""Published JSON Schemas: up to date, valid draft-07, consistent with releases."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dsconfig import schema
from dsconfig.schema import Version
from dsconfig.schema import keys as every_key
from dsconfig.schema.json_schema import json_schema
from dsconfig.schema.version import NEWEST, PUBLISHED

FOLDER = Path(__file__).parent.parent.parent / "schemas"
published = cache(json_schema)


def parts(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping inside a schema, with its place."""
    if isinstance(value, dict):
        yield path, value
        for name, part in value.items():
            yield from parts(part, f"{path}/{name}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from parts(part, f"{path}/{index}")


def test_published_schemas_cover_minor_releases() -> None:
    assert [str(version) for version in PUBLISHED] == [
        "0.10.3", "0.11.2", "0.12.6", "0.13.5", "0.14.5",
        "0.15.4", "0.16.9", "0.17.6", "0.18.9", "0.19.8",
    ]  # fmt: skip
    assert len(list(FOLDER.iterdir())) == len(PUBLISHED) + 1


@pytest.mark.parametrize("version", PUBLISHED, ids=str)
class TestEachRelease:
    def test_is_draft_07(self, version: Version) -> None:
        jsonschema.Draft7Validator.check_schema(published(version))
        assert published(version)["$schema"] == "http://json-schema.org/draft-07/schema#"

    def test_references_have_no_siblings(self, version: Version) -> None:
        references = [
            part for _, part in parts(published(version)) if isinstance(part.get("$ref"), str)
        ]
        assert references
        assert [part for part in references if len(part) > 1] == []

    def test_uses_draft_07_keywords(self, version: Version) -> None:
        newer = {"$defs", "prefixItems", "dependentRequired", "unevaluatedProperties"}
        assert [path for path, part in parts(published(version)) if newer & part.keys()] == []

    def test_has_no_internal_marks(self, version: Version) -> None:
        marks = [
            path
            for path, part in parts(published(version))
            for name in part
            if name.startswith("x-")
        ]
        assert marks == []

    def test_definitions_equal_references(self, version: Version) -> None:
        names = {
            part["$ref"].removeprefix("#/definitions/")
            for _, part in parts(published(version))
            if isinstance(part.get("$ref"), str)
        }
        assert names == set(published(version)["definitions"])

    def test_describes_each_key(self, version: Version) -> None:
        blocks = [published(version), *published(version)["definitions"].values()]
        silent = [
            name
            for block in blocks
            for name, key in block["properties"].items()
            if "description" not in key and "$ref" not in key
        ]
        assert silent == []


def at(version: str) -> dict[str, Any]:
    return published(Version.parse(version))


def valid(config: dict[str, Any], version: Version = NEWEST) -> bool:
    return jsonschema.Draft7Validator(published(version)).is_valid(config)


def test_defaults_are_those_of_the_release() -> None:
    assert at("0.14.5")["properties"]["gradient_clipping"]["default"] == 0.0
    assert at("0.19.8")["properties"]["gradient_clipping"]["default"] == 1.0


def test_bounds_are_those_of_the_release() -> None:
    config = {"zero_optimization": {"reduce_bucket_size": 0}}
    assert valid(config, Version(0, 18, 9))
    assert not valid(config)


def test_keys_are_those_of_the_release() -> None:
    assert valid({"amp": {"enabled": True}}, Version(0, 18, 9))
    assert not valid({"amp": {"enabled": True}})
    assert valid({"expert_parallel": {"enabled": True}})
    assert not valid({"expert_parallel": {"enabled": True}}, Version(0, 18, 9))


def test_external_keys_are_in_every_release() -> None:
    others = {key.path for key in every_key() if key.status == "external" and "." not in key.path}
    assert others
    for version in (PUBLISHED[0], NEWEST):
        assert others <= published(version)["properties"].keys()


def test_optimizers_are_those_of_the_release() -> None:
    one_bit = {"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3, "freeze_step": 100}}}
    muon = {"optimizer": {"type": "muon", "params": {"momentum": 0.9}}}
    assert [valid(one_bit, version) for version in (Version(0, 18, 9), NEWEST)] == [True, False]
    assert [valid(muon, version) for version in (Version(0, 16, 9), NEWEST)] == [False, True]


def test_arguments_follow_the_type() -> None:
    assert valid({"optimizer": {"type": "aDaMw", "params": {"bias_correction": True}}})
    assert not valid({"optimizer": {"type": "SGD", "params": {"bias_correction": True}}})
    assert not valid({"scheduler": {"type": "WarmupDecayLR", "params": {}}})


def test_comment_keys_are_allowed_in_open_blocks() -> None:
    assert valid({"$schema": "urn:dsconfig:schema:ds_config.schema.json"})
    assert valid({"_comment": "for the small cluster", "optimizer": {"type": "Adam", "//": "x"}})
    assert not valid({"zero_optimization": {"_comment": "stage 3 is too slow"}})


def test_the_seeds_are_valid() -> None:
    for path in sorted((Path(__file__).parent / "configs").glob("*.json")):
        assert valid(json.loads(path.read_text())), path.name


def test_key_and_alias_are_exclusive() -> None:
    both = {"stage3_max_live_parameters": 1, "max_live_parameters": 1}
    assert not valid({"zero_optimization": both})
    assert valid({"zero_optimization": {"max_live_parameters": 1}})
    assert [error.pointer for error in schema.errors({"zero_optimization": both})] == [
        "/zero_optimization/max_live_parameters"
    ]

"""JSON Schemas for editors: draft-07, one per DeepSpeed release.

Draft-07 has the best editor support: ``definitions``, and no siblings of ``$ref``. Models contain
the keys of all releases; each schema omits the keys its release does not read.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema

from dsconfig.schema.config import DSConfig
from dsconfig.schema.declare import DECLARATION_MARK, HISTORY_MARK, Block, Declaration, KeyHistory
from dsconfig.schema.lazy import LAZY_MARK, VARIANTS_MARK, Lazy, Variants
from dsconfig.schema.markers import Bounds, any_case_pattern
from dsconfig.schema.version import NEWEST, PUBLISHED, Version

IDENTITY = "urn:dsconfig:schema"
"""Identifier, not an address: the schemas are files of this repository."""
DIALECT = "http://json-schema.org/draft-07/schema#"
COMMENT_KEYS = r"^(_|//|#|\$|/\*|--)"
"""Comment-like keys, which DeepSpeed ignores in blocks without a model."""

JsonSchema = dict[str, Any]


def json_schema(version: Version = NEWEST) -> JsonSchema:
    """Return the schema of a ds_config for a DeepSpeed release."""
    return SchemaBuilder(version).root()


def file_name(version: Version | None = None) -> str:
    """Return the file name of a release's schema; without a version, that of the newest."""
    return f"ds_config-{version}.schema.json" if version else "ds_config.schema.json"


def to_text(schema: JsonSchema) -> str:
    """Return a schema as text."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def published() -> dict[str, str]:
    """Return all published schemas as text, by file name."""
    texts = {file_name(version): to_text(json_schema(version)) for version in PUBLISHED}
    return texts | {file_name(): to_text(json_schema() | {"$id": f"{IDENTITY}:{file_name()}"})}


class Draft07(GenerateJsonSchema):
    """Pydantic's generator without field titles."""

    schema_dialect = DIALECT

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class SchemaBuilder:
    """Builds the schema of a release; blocks are added when referenced."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.definitions: dict[str, JsonSchema] = {}

    def root(self) -> JsonSchema:
        body = self.add(DSConfig)
        root = self.definitions.pop(body)
        return {
            "$schema": DIALECT,
            "$id": f"{IDENTITY}:{file_name(self.version)}",
            **root,
            "title": f"ds_config of DeepSpeed {self.version}",
            "definitions": dict(sorted(self.reachable_from(root).items())),
        }

    def reachable_from(self, root: JsonSchema) -> dict[str, JsonSchema]:
        """Return the definitions reachable from the root."""
        reachable: dict[str, JsonSchema] = {}
        pending = _references(root)
        while pending:
            name = pending.pop()
            if name not in reachable:
                reachable[name] = self.definitions[name]
                pending += _references(reachable[name])
        return reachable

    def add(self, block: type[Block]) -> str:
        """Define a block and its nested blocks once; return its name."""
        module = block.__module__.rpartition(".")[2]
        name = f"{module}.{block.__name__}"
        if name not in self.definitions:
            self.definitions[name] = {}  # reserve the name during recursion
            definition = block.model_json_schema(
                ref_template=f"#/definitions/{module}.{{model}}", schema_generator=Draft07
            )
            for inner, schema in definition.pop("$defs", {}).items():
                self.definitions[f"{module}.{inner}"] = self.convert(schema)
            self.definitions[name] = self.convert(definition)
        return name

    def reference(self, block: type[Block]) -> JsonSchema:
        return {"$ref": f"#/definitions/{self.add(block)}"}

    def convert(self, schema: Any) -> Any:
        """Convert pydantic's output and the metadata in it to draft-07."""
        if isinstance(schema, list):
            return [self.convert(part) for part in cast(list[Any], schema)]
        if not isinstance(schema, dict):
            return schema
        return self.convert_one(cast(JsonSchema, schema))

    def convert_one(self, schema: JsonSchema) -> JsonSchema:
        schema = {name: part for name, part in schema.items() if name != "title"}
        if "properties" in schema:
            return self.mapping(schema)
        if schema.get("additionalProperties") is True:
            del schema["additionalProperties"]  # the default; not all pydantic versions write it
        declared: Declaration | None = schema.pop(DECLARATION_MARK, None)
        if LAZY_MARK in schema:
            lazy: Lazy = schema.pop(LAZY_MARK)
            schema |= self.reference(lazy.load())
        converted = {name: self.convert(part) for name, part in schema.items()}
        if declared is not None:
            converted = self.described(converted, declared)
        return _without_ref_siblings(converted)

    def mapping(self, schema: JsonSchema) -> JsonSchema:
        """Convert a block: the keys of this release under all their names."""
        history: KeyHistory = schema.pop(HISTORY_MARK)
        properties: dict[str, JsonSchema] = {}
        alias_conflicts: list[JsonSchema] = []
        for name, value in schema.pop("properties").items():
            declared: Declaration = value[DECLARATION_MARK]
            if not self.reads(declared, history):
                continue
            properties[name] = self.convert(value)
            for alias in declared.aliases:
                description = {"description": f"Alias of {name}."}
                properties[alias] = _without_ref_siblings(properties[name] | description)
                # ajv's strictRequired expects the names among the properties of the same schema.
                both = [name, alias]
                alias_conflicts.append(
                    {"not": {"properties": dict.fromkeys(both, True), "required": both}}
                )
        schema["properties"] = properties
        required = [name for name in schema.pop("required", []) if name in properties]
        if required:
            schema["required"] = required
        if not (history.arguments or history.is_closed_at(self.version)):
            schema["patternProperties"] = {COMMENT_KEYS: {}}
        conditions = alias_conflicts + self.branches(properties)
        if conditions:
            schema["allOf"] = conditions
        return schema

    def branches(self, properties: dict[str, JsonSchema]) -> list[JsonSchema]:
        """Convert a union discriminated by ``type``: the arguments of each type."""
        variants: Variants | None = properties.get("params", {}).pop(VARIANTS_MARK, None)
        if variants is None:
            return []
        known = [name for name, type_ in variants.types.items() if type_.is_known_at(self.version)]
        blocks = {name: variants.blocks[name].load() for name in known}
        properties["type"] |= {"anyOf": _names(tuple(blocks), variants.any_case)}
        properties["type"].pop("enum", None)
        properties["type"].pop("type", None)
        properties["params"]["type"] = ["object", "null"] if variants.nullable else "object"
        conditions: list[JsonSchema] = []
        for name, block in blocks.items():
            params = self.reference(block)
            if variants.nullable:
                params = {"anyOf": [params, {"type": "null"}]}
            test = _name(name, variants.any_case)
            conditions.append(
                {
                    "if": {"properties": {"type": test}, "required": ["type"]},
                    "then": {"properties": {"params": params}},
                }
            )
        return conditions

    def described(self, schema: JsonSchema, declared: Declaration) -> JsonSchema:
        """Add unit, replacement, and the default and bounds of this release."""
        if declared.unit:
            schema["description"] += f" Unit: {declared.unit}."
        if declared.replaced_by:
            schema |= {"deprecated": True, "deprecationMessage": f"Use {declared.replaced_by}."}
        if "default" in schema:
            schema["default"] = self.value_at_release(declared.was, schema["default"])
            if schema["default"] is None and not _nullable(schema):
                del schema["default"]
        bounds = self.value_at_release(declared.bounds_was, None)
        if bounds is not None:
            _limit(schema, bounds)
        return schema

    def value_at_release(self, changes: Mapping[str, Any], now: Any) -> Any:
        """Return the value at this release, given the values before each change."""
        return next((was for at, was in changes.items() if self.version < Version.parse(at)), now)

    def reads(self, declared: Declaration, history: KeyHistory) -> bool:
        """Return whether this release reads a key."""
        if declared.status or history.status:
            return (declared.status or history.status) == "external"
        since, until = declared.since or history.since, declared.until or history.until
        last = Version.parse(until) if until else self.version
        if not Version.parse(since) <= self.version <= last:
            return False
        if declared.gap is None:
            return True
        start, end = map(Version.parse, declared.gap)
        return not start <= self.version <= end


def _references(schema: Any) -> list[str]:
    """Return the names of definitions that a schema refers to."""
    if isinstance(schema, list):
        return [name for part in cast(list[Any], schema) for name in _references(part)]
    if not isinstance(schema, dict):
        return []
    mapping = cast(JsonSchema, schema)
    target = mapping.get("$ref")
    own = [target.removeprefix("#/definitions/")] if isinstance(target, str) else []
    return own + [name for part in mapping.values() for name in _references(part)]


def _without_ref_siblings(schema: JsonSchema) -> JsonSchema:
    """Wrap a reference with siblings in ``allOf``; draft-07 ignores siblings of ``$ref``."""
    if "$ref" in schema and len(schema) > 1:
        return {"allOf": [{"$ref": schema.pop("$ref")}], **schema}
    return schema


def _nullable(schema: JsonSchema) -> bool:
    kind = schema.get("type")
    return kind == "null" or any(_nullable(part) for part in schema.get("anyOf", []))


def _limit(schema: JsonSchema, bounds: Bounds) -> None:
    """Replace the bounds of the number in a schema."""
    if schema.get("type") in ("integer", "number"):
        names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        for name, limit in zip(names, bounds, strict=True):
            schema.pop(name, None)
            if limit is not None:
                schema[name] = limit
    for part in schema.get("anyOf", []):
        _limit(part, bounds)


def _names(names: tuple[str, ...], any_case: tuple[str, ...]) -> list[JsonSchema]:
    words = [{"enum": list(names)}]
    free = tuple(name for name in names if name in any_case)
    return [*words, {"type": "string", "pattern": any_case_pattern(free)}] if free else words


def _name(name: str, any_case: tuple[str, ...]) -> JsonSchema:
    if name in any_case:
        return {"type": "string", "pattern": any_case_pattern((name,))}
    return {"const": name}

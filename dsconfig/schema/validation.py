"""Schema validation: all errors of a config with their positions."""

from enum import StrEnum
from typing import Any, NamedTuple, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dsconfig.schema.config import DSConfig
from dsconfig.schema.markers import AUTO, FIRST_BRANCH, SECOND_BRANCH


class ErrorKind(StrEnum):
    UNKNOWN = "unknown"
    """No DeepSpeed release has this key here."""
    TYPE = "type"
    BOUND = "bound"
    """A number out of bounds, or a list of wrong length."""
    CHOICE = "choice"
    """Not one of the valid choices."""
    MISSING = "missing"
    AUTO = "auto"
    """ "auto" for a key that no program fills in."""


class SchemaError(NamedTuple):
    """A schema error. ``pointer``: the value, the unknown key, or the missing key.
    ``known``: valid names in the block, for UNKNOWN."""

    pointer: str
    kind: ErrorKind
    expected: str
    value: Any = None
    known: tuple[str, ...] = ()


_KINDS = {
    "extra_forbidden": ErrorKind.UNKNOWN,
    "invalid_key": ErrorKind.UNKNOWN,
    "missing": ErrorKind.MISSING,
    "literal_error": ErrorKind.CHOICE,
    "greater_than": ErrorKind.BOUND,
    "greater_than_equal": ErrorKind.BOUND,
    "less_than": ErrorKind.BOUND,
    "less_than_equal": ErrorKind.BOUND,
    "finite_number": ErrorKind.BOUND,
    "too_short": ErrorKind.BOUND,
    "too_long": ErrorKind.BOUND,
}


def errors(values: Any) -> list[SchemaError]:
    """Return all schema errors of a config, in order of declaration."""
    try:
        DSConfig.model_validate(values)
    except ValidationError as failure:
        details = failure.errors(include_url=False, include_context=False)
        return [_read(detail, values) for detail in details]
    return []


def _read(detail: ErrorDetails, values: Any) -> SchemaError:
    path = tuple(part for part in detail["loc"] if part not in (FIRST_BRANCH, SECOND_BRANCH))
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in path)
    pointer = "".join(f"/{part}" for part in parts)
    kind = _KINDS.get(detail["type"], ErrorKind.TYPE)
    if kind is ErrorKind.UNKNOWN:
        known = known_names(values, path[:-1])
        return SchemaError(pointer, kind, "a known key", detail["input"], known)
    value = None if kind is ErrorKind.MISSING else detail["input"]
    return SchemaError(pointer, _narrowed(kind, value), _expected(values, path), value)


def _narrowed(kind: ErrorKind, value: Any) -> ErrorKind:
    if kind in (ErrorKind.TYPE, ErrorKind.CHOICE) and value == AUTO:
        return ErrorKind.AUTO
    if kind is ErrorKind.CHOICE and (
        value is None or isinstance(value, bool | float | list | dict)
    ):
        return ErrorKind.TYPE
    return kind


def _expected(values: Any, path: tuple[str | int, ...]) -> str:
    from dsconfig.schema.catalogue import find  # needed only if there is an error

    for length in range(len(path), 0, -1):
        key = find(_strings(path[:length]), of_type=_type_named(values, path))
        if key is not None:
            return key.expected
    return "an object"


def known_names(values: Any, block: tuple[str | int, ...]) -> tuple[str, ...]:
    """Return names and aliases of the live keys in the block at a path."""
    from dsconfig.schema.catalogue import blocks_of, find, live_names

    of_type = _type_named(values, block)
    if not block:
        return live_names((DSConfig,), None)
    parent = find(_strings(block), of_type=of_type)
    return live_names(blocks_of(parent.shape, of_type), parent) if parent else ()


def _strings(path: tuple[str | int, ...]) -> list[str]:
    return [str(part) for part in path]


def _type_named(values: Any, path: tuple[str | int, ...]) -> str | None:
    """Return the ``type`` of the top-level block of a path, if any."""
    if not path or not isinstance(values, dict):
        return None
    block = cast(dict[Any, Any], values).get(path[0])
    named = cast(dict[Any, Any], block).get("type") if isinstance(block, dict) else None
    return named if isinstance(named, str) else None

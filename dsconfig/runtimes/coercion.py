"""Conversion of values by DeepSpeed's typed blocks: accepted, converted or refused.

Since 0.7.0 the blocks are pydantic models in lax mode: releases before 0.15.0 with the API of
pydantic 1, later ones with that of pydantic 2; the two convert differently.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from dsconfig.schema.declare import FALSE_WORDS, TRUE_WORDS, ReadAs
from dsconfig.schema.version import Version

PYDANTIC_2 = Version(0, 15, 0)
"""The first release with pydantic 2 models."""

SCALE_NUMBERS_CHECKED = Version(0, 18, 8)
SCALE_INTEGERS_CHECKED = Version(0, 19, 3)


class Refused(ValueError):
    """The value does not match the field."""


STAGES = (0, 1, 2, 3)
AUTOTP_PASS = Version(0, 19, 6)
PASS_NAMES = ("z1", "z3", "autosp", "autotp")


def convert(kind: ReadAs, value: Any, version: Version, choices: tuple[Any, ...] = ()) -> Any:
    """Return the converted value for a field of this kind. Raises Refused."""
    if kind is ReadAs.CHOICE:
        if isinstance(value, str) and value in choices:
            return value
        raise Refused
    if kind is ReadAs.BOOL and isinstance(value, bool):
        return value
    if kind is ReadAs.INT and type(value) is int:
        return value
    return _CONVERTERS[kind](value, version)


def _bool(value: Any, version: Version) -> bool:
    key = value.lower() if isinstance(value, str) else value
    if isinstance(key, (str, int, float)):
        if key == 1 or key in TRUE_WORDS:
            return True
        if key == 0 or key in FALSE_WORDS:
            return False
    raise Refused


def _number(kind: type[Any], value: Any, version: Version) -> Any:
    if version < PYDANTIC_2 and not isinstance(value, (str, int, float)):
        raise Refused
    try:
        return _lax(kind)(value) if version >= PYDANTIC_2 else kind(value)
    except (ValueError, OverflowError):
        raise Refused from None


@cache
def _lax(kind: type[Any]) -> Callable[[Any], Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind).validate_python


_int, _float = partial(_number, int), partial(_number, float)


def _str(value: Any, version: Version) -> str:
    if version < PYDANTIC_2 and isinstance(value, (int, float)):
        return str(value)
    return _instance(str, value, version)


def _instance(kind: type[Any], value: Any, version: Version) -> Any:
    if not isinstance(value, kind):
        raise Refused
    return value


def _stage(value: Any, version: Version) -> int:
    if isinstance(value, str) and version >= PYDANTIC_2:
        value = _int(value, version)
    if isinstance(value, (int, float)) and value in STAGES:
        return int(value)
    raise Refused


def _strings(value: Any, version: Version) -> list[str]:
    return [_str(item, version) for item in _instance(list, value, version)]


def _text_or_strings(value: Any, version: Version) -> list[str]:
    return [value] if isinstance(value, str) else _strings(value, version)


def _passes(value: Any, version: Version) -> list[str]:
    items = _strings(value, version)
    known = PASS_NAMES if version >= AUTOTP_PASS else PASS_NAMES[:-1]
    if not all(item in known for item in items):
        raise Refused
    return items


def _text_or_int(value: Any, version: Version) -> str | int:
    return value if isinstance(value, str) else _int(value, version)


def _loss_scale(value: Any, version: Version) -> float:
    if version < SCALE_NUMBERS_CHECKED:
        return _float(value, version)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise Refused
    number = _float(value, version)
    if not math.isfinite(number) or number < 0:
        raise Refused
    return number


def _scale_integer(value: Any, version: Version) -> int:
    if version < SCALE_INTEGERS_CHECKED:
        return _int(value, version)
    if isinstance(value, bool):
        raise Refused
    try:
        int(value)
    except (TypeError, ValueError, OverflowError):
        raise Refused from None
    return _int(value, version)


def _never(value: Any, version: Version) -> Any:
    raise Refused


OWN_LIMITS = frozenset({ReadAs.LOSS_SCALE, ReadAs.SCALE_INTEGER})
"""Kinds whose limits are checked in the conversion or in a condition across keys."""

_CONVERTERS: dict[ReadAs, Callable[[Any, Version], Any]] = {
    ReadAs.BOOL: _bool,
    ReadAs.INT: _int,
    ReadAs.FLOAT: _float,
    ReadAs.STR: _str,
    ReadAs.PATH: partial(_instance, str),
    ReadAs.STAGE: _stage,
    ReadAs.LIST: partial(_instance, list),
    ReadAs.TEXT_OR_STRINGS: _text_or_strings,
    ReadAs.PASSES: _passes,
    ReadAs.DICT: partial(_instance, dict),
    ReadAs.BLOCK: partial(_instance, dict),
    ReadAs.TEXT_OR_INT: _text_or_int,
    ReadAs.LOSS_SCALE: _loss_scale,
    ReadAs.SCALE_INTEGER: _scale_integer,
    ReadAs.DTYPE: _never,
    ReadAs.ANY: partial(_instance, object),
}

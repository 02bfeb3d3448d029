"""Conversion of Python objects to JSON types: a config built by a program may contain anything."""

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple, cast

from dsconfig.source.pointer import MAX_VALUES, escape

LARGEST_INTEGER = int(sys.float_info.max)
"""Larger integers raise OverflowError in arithmetic with floats."""
SUBSTITUTE = 10**300
"""What the checks compute with instead of a larger integer."""
TOO_MANY_DIGITS = f"an integer has more than {sys.get_int_max_str_digits():,} digits"
"""Python's parsers raise ValueError for it."""
LONGEST_TEXT = 200
"""Characters of an object's text that messages show."""
_DIGITS_PER_BIT = math.log10(2)
_NAMES = {True: "true", False: "false", None: "null"}


class PythonObject:
    """An object that JSON cannot represent: a dtype, path, set or number of another library.

    Replaces the object itself, whose methods may raise. Equals nothing else.
    """

    __slots__ = ("_item", "text", "type_name")

    def __init__(self, value: object) -> None:
        self.type_name = type(value).__name__
        self.text = text_of(value)
        self._item = _as_json(value, self.text)

    def item(self) -> Any:
        """Return the JSON form: a number, list or text."""
        return self._item

    def __repr__(self) -> str:
        return self.text


def text_of(value: object) -> str:
    """Return ``str(value)`` in at most ``LONGEST_TEXT`` characters; the type if that raises."""
    return _text(value, str)


def shown(value: object) -> str:
    """Return a value for a message, as ``repr`` does; never raises and is never long."""
    if type(value) is int and not -LARGEST_INTEGER <= value <= LARGEST_INTEGER:
        return f"an integer of {digits(value)}"
    return _text(value, repr)


def _text(value: object, convert: Callable[[object], str]) -> str:
    try:
        text = convert(value)
    except Exception:  # the object is not ours
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."


def digits(value: int) -> str:
    """Return ``about N digits``. Python refuses to count those of very large integers exactly."""
    return f"about {round(value.bit_length() * _DIGITS_PER_BIT):,} digits"


def to_plain(value: Any) -> Any:
    """Convert to JSON types: keys become strings, tuples and arrays lists, others ``PythonObject``.

    Data that needs no conversion is returned itself.
    """
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    if value is None or kind in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        items, named, is_unchanged = (
            cast("Mapping[Any, Any]", value),
            dict[str, Any](),
            kind is dict,
        )
        for key, child in items.items():
            plain = to_plain(child)
            is_unchanged = is_unchanged and type(key) is str and plain is child
            named[_name(key)] = plain
        return items if is_unchanged else named
    if isinstance(value, list | tuple):
        parts = cast("list[Any]", value)
        plain = [to_plain(part) for part in parts]
        is_unchanged = kind is list and all(
            part is child for part, child in zip(parts, plain, strict=True)
        )
        return parts if is_unchanged else plain
    for base, convert in _BASES.items():
        if isinstance(value, base):
            return convert(value)
    return _array(value) or PythonObject(value)


_BASES: Mapping[type[Any], Callable[[Any], Any]] = {
    PurePath: str,
    str: str.__str__,
    int: int.__index__,
    float: float.__float__,
}
"""Conversions of subclasses, such as enumerations, whose own methods may do anything."""


def _array(value: Any) -> list[Any] | str | None:
    """Return an array as a list, as text if it is large, or None for another object."""
    try:
        dimensions, size = value.ndim, value.size
        if type(dimensions) is not int or type(size) is not int or dimensions < 1:
            return None
        return to_plain(value.tolist()) if size <= MAX_VALUES else text_of(value)
    except Exception:  # the object is not ours
        return None


def _as_json(value: Any, text: str) -> Any:
    """Return the JSON form of an object: items of a set, the number of a scalar, else its text."""
    try:
        if isinstance(value, set | frozenset):  # sorted, so that all processes agree
            return sorted(map(to_plain, cast("set[Any]", value)), key=str)
        number = value.item()
        return number if type(number) in (int, float, bool, str) else text
    except Exception:  # the object is not ours
        return text


def _name(key: Any) -> str:
    if type(key) is str:
        return key
    if isinstance(key, str):
        return str.__str__(key)
    return _NAMES[key] if key is None or isinstance(key, bool) else text_of(key)


class LargeInteger(NamedTuple):
    """An integer outside the range of a float, which most programs cannot compute with."""

    pointer: str
    value: int


def without_large_integers(value: Any) -> tuple[Any, list[LargeInteger]]:
    """Return plain data with ``SUBSTITUTE`` for each integer outside the range of a float.

    Data without such integers is returned itself.
    """
    found: list[LargeInteger] = []
    _collect(value, "", found)
    return (_replaced(value) if found else value), found


def _collect(value: Any, pointer: str, found: list[LargeInteger]) -> None:
    if type(value) is int:
        if not -LARGEST_INTEGER <= value <= LARGEST_INTEGER:
            found.append(LargeInteger(pointer, value))
    elif isinstance(value, dict):
        for key, child in cast("dict[str, Any]", value).items():
            if type(child) is int or isinstance(child, dict | list | tuple):
                _collect(child, f"{pointer}/{escape(key)}", found)
    elif isinstance(value, list | tuple):
        for index, child in enumerate(cast("list[Any]", value)):
            if type(child) is int or isinstance(child, dict | list | tuple):
                _collect(child, f"{pointer}/{index}", found)


def _replaced(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(child) for key, child in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_replaced(child) for child in cast("list[Any]", value)]
    if type(value) is int and not -LARGEST_INTEGER <= value <= LARGEST_INTEGER:
        return SUBSTITUTE if value > 0 else -SUBSTITUTE
    return value

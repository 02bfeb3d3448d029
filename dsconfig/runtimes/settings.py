"""Declaration and lookup of settings: a schema key, a type and the default of a release.

A dataclass declares the key of each field with :func:`setting`. ``ConfigView.build`` fills such a
dataclass from a config without "auto"; other fields have the schema's default for the newest
release.
"""

from collections.abc import Mapping
from dataclasses import field
from functools import cache, partial
from typing import Any

from dsconfig.lazy_imports import lazy_imports
from dsconfig.schema.paths import KeyPath
from dsconfig.schema.version import NEWEST, Version

with lazy_imports():
    from dsconfig.schema import catalogue


def setting(path: KeyPath, *, is_block: bool = False) -> Any:
    """Declare a field with the value of the key at ``path``; blocks do not count in hashes."""
    default, metadata = partial(default_of, path), {"key": path}
    return field(default_factory=default, hash=False if is_block else None, metadata=metadata)


@cache
def default_of(path: KeyPath, version: Version = NEWEST) -> Any:
    """Return the default of a key at a release."""
    known = catalogue.find(path)
    return None if known is None else plain(known.default_at(version))


def plain(value: Any) -> Any:
    """Convert a value to JSON types: dicts, lists, numbers and strings.

    A config built in Python may contain paths, tuples, numpy numbers or dtypes.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(child) for name, child in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, set | frozenset):  # sorted, so that all processes agree
        return sorted((plain(child) for child in value), key=str)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [plain(child) for child in value]  # pyright: ignore[reportUnknownVariableType]
    number = getattr(value, "item", None)
    return plain(number()) if callable(number) else str(value)

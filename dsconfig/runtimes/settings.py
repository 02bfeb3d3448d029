"""Declaration and lookup of settings: a schema key, a type and the default of a release.

A dataclass declares the key of each field with :func:`setting`. :class:`ConfigReader` fills such a
dataclass from a config without "auto"; other fields have the schema's
default for the newest release.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import cache, partial
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes import coercion
from dsconfig.schema.key_index import name_in_block
from dsconfig.schema.markers import AUTO
from dsconfig.schema.paths import ROOT, KeyPath
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source.pointer import ABSENT, is_block, value_at

with lazy_imports():
    from dsconfig.schema import catalogue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    D = TypeVar("D", bound=DataclassInstance)
else:
    D = TypeVar("D")


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


def _switch(value: Any) -> bool:
    return bool(value) and value != AUTO


def _count(value: Any) -> int | None:
    if isinstance(value, float) and not isfinite(value):
        return None
    return int(value) if isinstance(value, int | float) else None


_CONVERTED: Mapping[Any, Callable[[Any], Any]] = {
    bool: _switch,
    int: lambda value: int(value or 0),
    float: lambda value: float(value or 0),
    int | None: _count,
}
"""Conversions by field type; other values stay as they are."""


class ConfigReader:
    """Look up values in a config, under any of their names, with schema defaults.

    A missing or ``null`` entry has the default of ``version``. Raises ValueError if a value is
    still "auto" although the key has a resolver.
    """

    def __init__(self, config: Mapping[str, Any], version: Version) -> None:
        self.config = config
        self._version = version

    def _written(self, path: KeyPath) -> Any:
        block = value_at(self.config, path.parent)
        return block.get(name_in_block(path, block), ABSENT) if is_block(block) else ABSENT

    def has(self, path: KeyPath) -> bool:
        """Return whether the file sets a value other than null."""
        return self._written(path) not in (ABSENT, None)

    def value(self, path: KeyPath) -> Any:
        """Return the value under any of its names, or the default."""
        written = self._written(path)
        if written in (ABSENT, None):
            return default_of(path, self._version)
        known = catalogue.find(path)
        if known is None or not isinstance(written, str):
            return written
        if written == AUTO and known.shape.auto and known.auto_filled_by:
            raise ValueError(f'{path} is still "auto"; resolve the config first')
        if not known.checked_at(self._version):
            return written
        try:  # DeepSpeed's model converts strings: "2" to 2, "false" to False
            return coercion.convert(known.kind, written, self._version, known.choices)
        except coercion.Refused:
            return written

    def flag(self, path: KeyPath) -> bool:
        """Return a switch; off if the file does not have the block, regardless of its default."""
        return (not path.parent or self.has(path.parent)) and _switch(self.value(path))

    def count(self, path: KeyPath) -> int | None:
        """Return an integer, or None."""
        return _count(self.value(path))

    def build(self, kind: type[D], at: KeyPath | None = None, **given: Any) -> D:
        """Fill a dataclass of settings; ``given`` are fields that depend on several keys.

        ``at``: block to read instead of the one in the field declarations.
        """
        values = dict(given)
        for each in fields(kind):
            path: KeyPath | None = each.metadata.get("key")
            if path is None or each.name in given:
                continue
            if at is not None:
                path = at / path.name
                if catalogue.find(path) is None:
                    continue
            convert = _CONVERTED.get(each.type)
            value = self.value(path)
            values[each.name] = value if convert is None else convert(value)
        return kind(**values)

    def block(self, name: str) -> dict[str, Any]:
        """Return a block with defaults filled in; nested blocks as written."""
        parent = catalogue.find((name,))
        assert parent is not None, f"{name} is a block of the schema"
        inside = catalogue.named(catalogue.blocks_of(parent.shape), parent).values()
        filled = {known.name: self.value(known.key_path) for known in inside}
        return self._written(ROOT / name) | filled

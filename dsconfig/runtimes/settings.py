"""How a setting is declared and read: a key of the schema, a type, the default of a release.

A dataclass names the key of each of its fields with :func:`setting`. :class:`Settings` fills such a
dataclass from a config that holds no "auto"; a field that nobody fills has the schema's default
for the newest release.
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
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source.pointer import ABSENT, is_block, value_at

with lazy_imports():
    from dsconfig.schema import catalogue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    D = TypeVar("D", bound=DataclassInstance)
else:
    D = TypeVar("D")


def setting(path: str) -> Any:
    """A field that holds the value of the key at ``path``."""
    return field(default_factory=partial(default_of, path), metadata={"key": path})


@cache
def default_of(path: str, version: Version = NEWEST) -> Any:
    """What a release takes where a file does not have the key."""
    known = catalogue.key(path)
    return None if known is None else plain(known.default_at(version))


def plain(value: Any) -> Any:
    """A value as JSON gives it back: dicts, lists, numbers and texts.

    A config that is built in Python may hold a path, a tuple, a number of numpy or a dtype.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(child) for name, child in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, set | frozenset):  # in an order that is the same in every process
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
"""By the type of a field: what a value is turned into. Others stay as they are."""


class Settings:
    """Looks a path up in the config, by any of its spellings, and else in the schema.

    A missing or ``null`` entry takes the default of ``version``. Raises ValueError where the
    value is still "auto" although the key has a resolver.
    """

    def __init__(self, config: Mapping[str, Any], version: Version) -> None:
        self.config = config
        self._version = version

    def _written(self, path: str) -> Any:
        *blocks, _ = path.split(".")
        block = value_at(self.config, blocks)
        return block.get(name_in_block(path, block), ABSENT) if is_block(block) else ABSENT

    def has(self, path: str) -> bool:
        """True when the file sets it to something other than null."""
        return self._written(path) not in (ABSENT, None)

    def value(self, path: str) -> Any:
        """As written under any of its names, or the default."""
        written = self._written(path)
        if written in (ABSENT, None):
            return default_of(path, self._version)
        known = catalogue.key(path)
        if known is None or not isinstance(written, str):
            return written
        if written == AUTO and known.shape.auto and known.auto_filled_by:
            raise ValueError(f'{path} is still "auto"; resolve the config first')
        if not known.checked_at(self._version):
            return written
        try:  # as DeepSpeed's model reads a text: "2" is 2, "false" false
            return coercion.convert(known.kind, written, self._version, known.choices)
        except coercion.Refused:
            return written

    def flag(self, path: str) -> bool:
        """A switch; off in a block that the file does not have, whatever its default there."""
        block, _, inside = path.partition(".")
        return (self.has(block) or not inside) and _switch(self.value(path))

    def count(self, path: str) -> int | None:
        """A whole number, None where there is none."""
        return _count(self.value(path))

    def fill(self, kind: type[D], at: str | None = None, **given: Any) -> D:
        """A dataclass of settings. ``given`` are the fields that more than one key decides.

        ``at``: the block to read in the place of the one that the fields name.
        """
        values = dict(given)
        for each in fields(kind):
            path: str | None = each.metadata.get("key")
            if path is None or each.name in given:
                continue
            if at is not None:
                path = f"{at}.{path.rpartition('.')[2]}"
                if catalogue.key(path) is None:
                    continue
            convert = _CONVERTED.get(each.type)
            value = self.value(path)
            values[each.name] = value if convert is None else convert(value)
        return kind(**values)

    def block(self, name: str) -> dict[str, Any]:
        """A block with every direct default filled in, nested blocks as written."""
        parent = catalogue.key(name)
        assert parent is not None, f"{name} is a block of the schema"
        inside = catalogue.named(catalogue.blocks_of(parent.shape), parent).values()
        filled = {known.name: self.value(known.path) for known in inside}
        return self._written(name) | filled

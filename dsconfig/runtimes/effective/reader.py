"""Typed reading of a concrete config, with the defaults of one DeepSpeed release."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, cast

from dsconfig.schema import AUTO, key, keys
from dsconfig.schema.version import Version

ABSENT = object()


class Reader:
    """Looks a path up in the config, by any of its spellings, and else in the schema.

    A missing or ``null`` entry takes the default of ``version``. Raises ValueError where the
    value is still "auto" although the key has a resolver.
    """

    def __init__(self, config: Mapping[str, Any], version: Version) -> None:
        self._config = config
        self._version = version

    def _written(self, path: str) -> Any:
        value: Any = self._config
        for part in path.split("."):
            if not isinstance(value, Mapping):
                return ABSENT
            value = cast("Mapping[str, Any]", value).get(part, ABSENT)
        return value

    def has(self, path: str) -> bool:
        """True when the file sets it to something other than null."""
        return self._written(path) not in (ABSENT, None)

    def value(self, path: str) -> Any:
        """As written, or the default; None for everything in a block the file does not have.

        Every switch in an absent block is off, so nothing else of the block matters, and its
        models need not be built.
        """
        block, _, inside = path.partition(".")
        if inside and not self.has(block):
            return None
        known = key(path)
        written = self._written(path)
        if written in (ABSENT, None) and known is not None:
            parent = path.rpartition(".")[0]
            for alias in known.aliases:
                spelled = f"{parent}.{alias}" if parent else alias
                if self.has(spelled):
                    written = self._written(spelled)
        if written in (ABSENT, None):
            return None if known is None else known.default_at(self._version)
        if written == AUTO and known is not None and known.auto_filled_by:
            raise ValueError(f'{path} is still "auto"; resolve the config first')
        return written

    def flag(self, path: str) -> bool:
        value = self.value(path)
        return bool(value) and value != AUTO

    def number(self, path: str) -> float:
        return float(self.value(path) or 0)

    def integer(self, path: str) -> int:
        return int(self.value(path) or 0)

    def optional_integer(self, path: str, *, use_default: bool = True) -> int | None:
        if not use_default and not self.has(path):
            return None
        value = self.value(path)
        return int(value) if isinstance(value, int | float) and isfinite(value) else None

    def names(self, path: str) -> tuple[str, ...]:
        value = self.value(path)
        return tuple(map(str, value)) if isinstance(value, list | tuple) else ()  # pyright: ignore[reportUnknownArgumentType]

    def block(self, name: str) -> dict[str, Any]:
        """A block with every direct default filled in, nested blocks as written."""
        prefix = f"{name}."
        filled = {
            known.path.removeprefix(prefix): self.value(known.path)
            for known in keys()
            if known.path.startswith(prefix) and "." not in known.path.removeprefix(prefix)
        }
        written = self._written(name)
        return filled | dict(written) if isinstance(written, Mapping) else filled  # pyright: ignore[reportUnknownArgumentType]

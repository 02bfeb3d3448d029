"""Normalized form of a config for a release: canonical names and values.

Configs with equal meaning train the same way.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from dsconfig.schema.catalogue import Key, find
from dsconfig.schema.former_names import with_current_names
from dsconfig.schema.markers import integral
from dsconfig.schema.paths import OVERLAP_COMM, ROOT, STAGE, ZERO, KeyPath
from dsconfig.schema.value_checks import DTYPE_OF_NAME
from dsconfig.schema.version import Version

Config = Mapping[str, Any]
SET_BY_STAGE = (OVERLAP_COMM,)
"""Keys whose default depends on the ZeRO stage: true at stage 3."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """``settings``: values that the release reads, by path; ``unread``: the other ones."""

    version: Version
    settings: Mapping[KeyPath, Any]
    unread: Mapping[KeyPath, Any]

    def has_block(self, path: tuple[str, ...]) -> bool:
        """Return whether a block has any settings."""
        return any(setting[: len(path)] == path for setting in self.settings)

    def value(self, path: KeyPath) -> Any:
        """Return the value at a path, or else the release's default (None without one)."""
        if path in self.settings:
            return self.settings[path]
        key = find(path, of_type=self.settings.get(ROOT / path[0] / "type"))
        if key is None or (path[0] in ("optimizer", "scheduler") and not self.has_block(path[:1])):
            return None
        default = key.default_at(self.version)
        if path in SET_BY_STAGE and default is None:
            return self.value(STAGE) == 3
        return _normalized(key, default)

    def ignored_at_stage(self, path: KeyPath) -> int | None:
        """Return the ZeRO stage if it makes the key at a path ineffective, else None."""
        stage = self.value(STAGE)
        if path[:1] != ZERO or not isinstance(stage, int):
            return None
        keys = (find(path[:length]) for length in (2, len(path)))
        limits = [key.declared.stages for key in keys if key is not None and key.declared.stages]
        return stage if any(stage not in stages for stages in limits) else None


def meaning(config: Config, version: Version) -> Meaning:
    """Return the meaning of a config for a release."""
    settings: dict[KeyPath, Any] = {}
    unread: dict[KeyPath, Any] = {}
    below_unread: set[KeyPath] = set()
    for path, key, value in _walk(with_current_names(config), ROOT, None):
        if path.parent in below_unread:
            below_unread.add(path)
        elif key is None or not key.read_at(version):
            unread[path] = value
            below_unread.add(path)
        elif not isinstance(value, dict):
            settings[path] = _normalized(key, value)
    return Meaning(version, settings, unread)


def _walk(
    mapping: Config, above: KeyPath, of_type: str | None
) -> Iterator[tuple[KeyPath, Key | None, Any]]:
    """Yield entries with their keys under canonical names; nothing below unknown keys."""
    for name, value in mapping.items():
        key = find(above / name, of_type=of_type)
        path = above / (key.name if key is not None and "*" not in key.name else name)
        yield path, key, value
        if key is not None and isinstance(value, dict):
            block = cast(Config, value)
            type_ = block.get("type") if not above else of_type
            yield from _walk(block, path, type_ if isinstance(type_, str) else None)


def _normalized(key: Key, value: Any) -> Any:
    """Normalize a value: integral floats, case-insensitive words, dtype names."""
    if isinstance(value, list):
        return [integral(item) for item in cast(list[Any], value)]
    if isinstance(value, str):
        if "torch.float16" in key.choices:
            return DTYPE_OF_NAME.get(value, value)
        return value.lower() if value.lower() in map(str.lower, key.shape.any_case) else value
    return integral(value)

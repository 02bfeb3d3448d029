"""``[tool.dsconfig]`` of the nearest pyproject.toml.

[tool.dsconfig]
ignore = ["DSC7"]
per-file-ignores = {"legacy/*.json" = ["DSC412"]}
runtime = "transformers"
deepspeed-version = "0.16.4"
model = "meta-llama/Llama-3.1-8B"
devices = "8 x h100"
exclude = ["third_party/*"]
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dsconfig import os_errors
from dsconfig.project.errors import UsageError, usage
from dsconfig.schema.version import known_release
from dsconfig.source.pointer import is_block, is_list

SECTION = "[tool.dsconfig]"
LISTS = ("select", "ignore", "exclude")
TEXTS = ("runtime", "deepspeed-version", "model", "devices")
PER_FILE = "per-file-ignores"


class ProjectSettings(NamedTuple):
    """Settings of a project. Patterns are matched relative to ``root``."""

    root: Path = Path()
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    runtime: str | None = None
    version: str | None = None
    model: str | None = None
    gpus: int | None = None
    device: str | None = None

    @property
    def file(self) -> str:
        return str(self.root / "pyproject.toml")

    @property
    def facts(self) -> dict[str, Any]:
        """The model and GPUs that are set, by the name of their flag."""
        named = {"model": self.model, "device": self.device, "gpus": self.gpus}
        return {name: value for name, value in named.items() if value}

    def excludes(self, file: str) -> bool:
        return any(self._matches(file, pattern) for pattern in self.exclude)

    def ignored_in(self, file: str) -> tuple[str, ...]:
        """Return the selectors that are ignored in a file."""
        listed = self.per_file_ignores.items()
        return tuple(
            code for pattern, codes in listed if self._matches(file, pattern) for code in codes
        )

    def _matches(self, file: str, pattern: str) -> bool:
        from fnmatch import fnmatch

        path = Path(file).absolute()
        if path.is_relative_to(self.root):
            path = path.relative_to(self.root)
        return fnmatch(path.as_posix(), pattern) or fnmatch(path.name, pattern)


def settings_for(file: str) -> ProjectSettings:
    """Return the settings for a file or folder. Raises UsageError if they are malformed."""
    path = Path(file).absolute()
    return _settings_of(path if os_errors.is_folder(path) else path.parent)


@lru_cache(maxsize=1024)
def _settings_of(folder: Path) -> ProjectSettings:
    for parent in (folder, *folder.parents):
        settings = _read(parent / "pyproject.toml")
        if settings is not None:
            return settings
    return ProjectSettings()


def clear_cache() -> None:
    """Read settings again on next use, for long-running programs."""
    _settings_of.cache_clear()


def _read(path: Path) -> ProjectSettings | None:
    """Return the settings in one file, or None."""
    try:
        if not os_errors.is_file(path):
            return None
        text = path.read_text("utf-8")
    except (OSError, ValueError):  # a long name, or not UTF-8
        return None
    bare = text.replace(" ", "")
    if "tool.dsconfig" not in bare and "[tool]" not in bare:
        return None  # most projects do not need the TOML parser
    import tomllib

    try:
        tools = tomllib.loads(text).get("tool")
    except (ValueError, RecursionError) as error:  # invalid TOML, or nested too deeply
        raise UsageError(f"{path}: {error}") from None
    table = tools.get("dsconfig") if is_block(tools) else None
    return None if table is None else _settings(path, table)


def _settings(path: Path, table: Any) -> ProjectSettings:
    if not is_block(table):
        raise UsageError(f"{path}: {SECTION} must be a table")
    for key in table:
        if key not in (*LISTS, *TEXTS, PER_FILE):
            known = ", ".join((*LISTS, *TEXTS, PER_FILE))
            raise UsageError(f"{path}: unknown key {key!r} in {SECTION}; known keys: {known}")
    per_file = table.get(PER_FILE, {})
    if not is_block(per_file):
        raise UsageError(f"{path}: {PER_FILE} must map patterns to lists of codes")
    gpus, device = _devices(path, _text(path, "devices", table.get("devices")))
    return ProjectSettings(
        model=_text(path, "model", table.get("model")),
        gpus=gpus,
        device=device,
        root=path.parent,
        select=_texts(path, "select", table.get("select", [])),
        ignore=_texts(path, "ignore", table.get("ignore", [])),
        exclude=_texts(path, "exclude", table.get("exclude", [])),
        per_file_ignores={name: _texts(path, name, codes) for name, codes in per_file.items()},
        runtime=_text(path, "runtime", table.get("runtime")),
        version=_release(path, _text(path, "deepspeed-version", table.get("deepspeed-version"))),
    )


def _texts(path: Path, key: str, value: Any) -> tuple[str, ...]:
    if is_list(value) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise UsageError(f"{path}: {key} in {SECTION} must be a list of strings")


def _text(path: Path, key: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise UsageError(f"{path}: {key} in {SECTION} must be a string")


def _release(path: Path, text: str | None) -> str | None:
    """Return a release of DeepSpeed. Raises UsageError for an unknown one."""
    with usage(f"{path}: deepspeed-version"):
        return None if text is None else str(known_release(text))


MAX_DIGITS = 9
_DEVICES = re.compile(r"\s*(?:(\d+)\s*x\s+)?(\S.*?)\s*")


def _devices(path: Path, text: str | None) -> tuple[int | None, str | None]:
    """Return number and name of the GPUs: ``8 x h100``, or the name only."""
    if text is None:
        return None, None
    match = _DEVICES.fullmatch(text)
    if match is None or len(match[1] or "") > MAX_DIGITS:
        raise UsageError(f'{path}: devices in {SECTION} must have the form "8 x h100"')
    return int(match[1]) if match[1] else None, match[2]

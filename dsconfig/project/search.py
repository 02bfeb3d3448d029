"""Search folders for configs, by file name or content."""

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dsconfig import os_errors
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.neighbours import YAMLS
from dsconfig.source.file_kinds import SCRIPTS

with lazy_imports():
    from dsconfig.checks.keys import is_comment
    from dsconfig.facts import launch_files
    from dsconfig.schema import known_names
    from dsconfig.source import file_kinds, read
    from dsconfig.source.findings import NO_CONFIG
    from dsconfig.source.reading import read_text

if TYPE_CHECKING:
    from dsconfig.facts.launch_files import Launch
    from dsconfig.source import Document

NAMES = (
    "ds_config*.*json",
    "*ds_config*.*json",
    "*deepspeed*config*.*json",
    "ds_z[0-9]*.*json",
    "zero[0-9]*.*json",
)
"""Common names of configs; a file with such a name is checked regardless of its content."""
SUFFIXES = (".json", ".hjson", ".yaml", ".yml")
SKIPPED = frozenset(("node_modules", "__pycache__", "site-packages", "build", "dist", "venv"))
MOST_FILES = 1_000
"""Files of a directory that are opened to find one that launches a run."""
MAX_BYTES = 2**20
"""Larger files are not searched by content."""
CONFIG_KEYS = re.compile(
    r"""["']?(?:train_batch_size|train_micro_batch_size_per_gpu|zero_optimization"""
    r"""|gradient_accumulation_steps|zero_allow_untested_optimizer)["']?\\?\s*:"""
)
"""A JSON file without one of these is not a config."""
YAML_KEYS = re.compile(r"^\s*(?:deepspeed|deepspeed_config(?:_file)?)\s*:", re.MULTILINE)
"""A YAML file without one of these neither contains nor names a config."""


def configs_in(directory: str) -> Iterator[str]:
    """Yield the configs below a directory in alphabetical order, skipping hidden folders."""
    for folder, files in _walk(directory):
        for name in files:
            path = Path(folder, name)
            # Opening a pipe blocks, and a device may have no end. Broken links are reported.
            is_special = os_errors.exists(path) and not os_errors.is_file(path)
            if name.endswith(SUFFIXES) and not is_special and is_candidate(path):
                yield str(path)


def launch_files_in(directory: str) -> list[str]:
    """Return the files of a directory that launch a run, scripts first, then its configs.

    Folders in it are not searched.
    """
    names = sorted(os.listdir(directory))  # noqa: PTH208 - Path.iterdir yields whole paths
    paths = [Path(directory, name) for name in names[:MOST_FILES] if name[0] != "."]
    paths = [path for path in paths if os_errors.is_file(path)]
    suffixes = (*SCRIPTS, *YAMLS, ".py")
    candidates = sorted(
        (path for path in paths if path.suffix in suffixes),
        key=lambda path: path.suffix not in SCRIPTS,
    )
    launches = [launch_files.launch_in(str(path)) for path in candidates]
    found = [launch for launch in launches if launch is not None]
    named = {os.path.realpath(file) for launch in found for file in _named_by(launch)}
    configs = (path for path in paths if path.suffix in SUFFIXES and is_candidate(path))
    listed = dict.fromkeys((*(launch.file for launch in found), *map(str, configs)))
    return [file for file in listed if os.path.realpath(file) not in named] or [*listed]


def _named_by(launch: "Launch") -> Iterator[str]:
    """Yield the other files that a launch reads."""
    read = (*launch.files, launch.document.name if launch.document is not None else launch.file)
    yield from (file for file in read if file != launch.file)


def searched_folders(directory: str) -> Iterator[str]:
    """Yield a directory and the folders below it that a search visits; nothing for a file."""
    for folder, _ in _walk(directory):
        yield folder


def _walk(directory: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each searched folder with the names of its files, in alphabetical order."""
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in SKIPPED)
        yield folder, sorted(files)


def is_candidate(path: Path) -> bool:
    """Return whether a file is checked in a search: by its name, or because it has a config."""
    return _has_usual_name(path) or _looks_like_config(path)


def is_config(text: str, path: Path) -> bool:
    """Return whether a text would be a candidate as the content of a file."""
    if _has_usual_name(path):
        return True
    return _mentions_config(text, path) and _has_config(read_text(text, str(path)))


def _has_usual_name(path: Path) -> bool:
    return any(fnmatch(path.name.lower(), pattern) for pattern in NAMES)


def _looks_like_config(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError:
        return False
    if len(data) > MAX_BYTES or not _mentions_config(data.decode("utf-8", "replace"), path):
        return False
    return _has_config(read(path))


def _mentions_config(text: str, path: Path) -> bool:
    pattern = YAML_KEYS if path.suffix in YAMLS else CONFIG_KEYS
    return len(text) <= MAX_BYTES and pattern.search(text) is not None


def _has_config(document: "Document") -> bool:
    """Return whether a file contains or names a config, even one with mistakes."""
    if any(finding.code == NO_CONFIG for finding in document.diagnostics):
        return False
    if document.container or document.is_unreadable or document.is_broken:
        return True
    config = cast("dict[str, Any]", document.value)
    if file_kinds.another_kind(config) is not None:
        return False
    # Scripts may store their own settings in the same file.
    settings = {name for name in config if not is_comment(name)}
    known = settings & {*known_names(config, ())}
    return isinstance(config.get("zero_optimization"), dict) or 2 * len(known) >= len(settings)

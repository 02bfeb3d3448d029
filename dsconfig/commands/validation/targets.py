"""Files, directories, globs and ``-`` as a list of configs to judge."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from glob import glob
from pathlib import Path

STDIN = "-"
NAMES = (
    "ds_config*.*json",
    "*ds_config*.*json",
    "*deepspeed*config*.*json",
    "ds_z[0-9]*.*json",
    "zero[0-9]*.*json",
)
"""Names that people give to configs; a file called so is judged whatever is in it."""
SUFFIXES = (".json", ".hjson", ".yaml", ".yml")
SKIPPED = frozenset(("node_modules", "__pycache__", "site-packages", "build", "dist", "venv"))
LARGEST_LOOK = 2**20
"""Files above 1 MiB whose name says nothing are not looked into."""
CONFIG_KEYS = re.compile(
    r"""["']?(?:train_batch_size|train_micro_batch_size_per_gpu|zero_optimization"""
    r"""|gradient_accumulation_steps|zero_allow_untested_optimizer)["']?\\?\s*:"""
)
YAML_KEYS = re.compile(r"^\s*(?:deepspeed|deepspeed_config(?:_file)?)\s*:", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to judge: what to read, and what to call it."""

    source: str
    name: str


def targets(arguments: Iterable[str], stdin_name: str | None = None) -> list[Target]:
    """What the arguments name, each file once, directories in alphabetical order."""
    found: dict[str, Target] = {}
    for argument in arguments:
        for target in _expand(argument, stdin_name):
            found.setdefault(target.source, target)
    return list(found.values())


def _expand(argument: str, stdin_name: str | None) -> Iterator[Target]:
    if argument == STDIN:
        yield Target(STDIN, stdin_name or "<stdin>")
    elif _is_directory(argument):
        yield from (Target(file, file) for file in _configs_in(argument))
    elif any(mark in argument for mark in "*?[") and not _exists(argument):
        # Path.glob takes no absolute pattern.
        names = glob(argument, recursive=True)  # noqa: PTH207
        matching = sorted(name for name in names if Path(name).is_file())
        # A pattern that matches nothing is reported like any other missing file.
        yield from (Target(name, name) for name in matching or [argument])
    else:
        yield Target(argument, argument)


def _configs_in(directory: str) -> Iterator[str]:
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in SKIPPED)
        for name in sorted(files):
            path = str(Path(folder, name))
            if name.endswith(SUFFIXES) and (_is_named_so(name) or _looks_like_config(path)):
                yield path


def _is_named_so(name: str) -> bool:
    return any(fnmatch(name.lower(), pattern) for pattern in NAMES)


def _looks_like_config(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST_LOOK + 1)
    except OSError:
        return False
    if len(data) > LARGEST_LOOK:
        return False
    pattern = CONFIG_KEYS if path.endswith(("json",)) else YAML_KEYS
    return pattern.search(data.decode("utf-8", "replace")) is not None


def _is_directory(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False

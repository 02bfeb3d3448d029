"""Expand files, directories, globs and ``-`` to a list of configs to check."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dsconfig import os_errors
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError
from dsconfig.project.settings import settings_for

with lazy_imports():
    from dsconfig.project import search


STDIN = "-"


class Target(NamedTuple):
    """An input: path or ``-``, and its display name."""

    source: str
    name: str


def targets(
    arguments: Sequence[str], stdin_name: str | None, *, skip_non_configs: bool = False
) -> list[Target]:
    """Return the configs to check, each once, directories in alphabetical order.

    Files that the project excludes are skipped unless named. Raises UsageError if none is left.
    With ``skip_non_configs``, named files without a config, and excluded ones, are skipped as well.
    """
    selected: dict[str, Target] = {}
    for argument in arguments:
        for target in _expand(argument, stdin_name):
            is_named = target.name in arguments or target.source == STDIN
            if skip_non_configs and target.source != STDIN:
                is_named = False
                if not search.is_candidate(Path(target.source)):
                    continue
            if is_named or not settings_for(target.name).excludes(target.name):
                selected.setdefault(target.source, target)
    if not selected and not skip_non_configs:
        raise UsageError(f"no config found in {', '.join(arguments)}; name the file itself")
    return list(selected.values())


def _expand(argument: str, stdin_name: str | None) -> Iterator[Target]:
    if not argument.strip():
        raise UsageError(
            f"{argument!r} is not a file name; specify a file, a directory, or - for stdin"
        )
    path = Path(argument)
    if argument == STDIN:
        yield Target(STDIN, stdin_name or "<stdin>")
    elif os_errors.is_folder(path):
        yield from (Target(file, file) for file in search.configs_in(argument))
    elif any(mark in argument for mark in "*?[") and not os_errors.exists(path):
        from glob import glob

        # Path.glob does not accept absolute patterns.
        names = glob(argument, recursive=True)  # noqa: PTH207
        matching = sorted(name for name in names if os_errors.is_file(name))
        # A pattern that matches nothing is reported like any other missing file.
        yield from (Target(name, name) for name in matching or [argument])
    else:
        yield Target(argument, argument)

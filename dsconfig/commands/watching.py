"""``dsconfig validate --watch``: check again when a file changes, until it is interrupted."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from dsconfig.commands.notes import note
from dsconfig.commands.printing import error_line
from dsconfig.project import settings
from dsconfig.project.errors import UsageError
from dsconfig.project.search import searched_folders
from dsconfig.project.targets import Target

SECONDS = 0.3
"""Between two looks at the files."""
CLEAR = "\x1b[2J\x1b[3J\x1b[H"
"""Clears a terminal and its scroll-back buffer."""

Fingerprint = dict[str, tuple[int, int, int] | None]
"""Inode, time of change and size of each file and folder; None if it does not exist."""


def watch(
    select: Callable[[], list[Target]],
    check: Callable[[list[Target]], object],
    arguments: Sequence[str],
    inputs: Sequence[str],
) -> NoReturn:
    """Check the selected configs, and again whenever something that the findings depend on changes.

    ``arguments``: the files and folders to select from; ``inputs``: other files that the command
    line names. A usage error of a file, e.g. of pyproject.toml in the middle of an edit, is printed
    and does not end the loop.
    """
    chosen: list[Target] = []
    while True:
        # Changes during selection or check differ from these states.
        before = _fingerprint(chosen, arguments, inputs)
        if sys.stdout.isatty():
            sys.stdout.write(CLEAR)
        settings.clear_cache()
        try:
            chosen = select()
            before = _fingerprint(chosen, arguments, inputs) | before
            check(chosen)
        except UsageError as error:
            error_line(str(error))
        note("watching for changes; Ctrl-C to stop")
        sys.stdout.flush()
        while before == _fingerprint(chosen, arguments, inputs):
            time.sleep(SECONDS)


def _fingerprint(
    chosen: Iterable[Target], arguments: Iterable[str], inputs: Iterable[str]
) -> Fingerprint:
    return {path: _state(path) for path in _paths(chosen, arguments, inputs)}


def _paths(
    chosen: Iterable[Target], arguments: Iterable[str], inputs: Iterable[str]
) -> Iterator[str]:
    """Yield all files and folders that the findings depend on."""
    yield from inputs
    folders = {Path(target.source).absolute().parent for target in chosen}
    for argument in arguments:
        yield argument
        yield from searched_folders(argument)
    for target in chosen:
        yield target.source
    for folder in folders:
        # Files next to a config may reference it, which decides the target program.
        yield from (entry.path for entry in _entries(folder))
        yield str(folder)
    above = {parent for folder in folders for parent in (folder, *folder.parents)}
    yield from (str(folder / "pyproject.toml") for folder in sorted(above))


def _entries(folder: Path) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.name.endswith((".json", ".yaml", ".yml"))]
    except OSError:
        return []


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size

"""The DeepSpeed installed here, told without importing it."""

import os
import sys
from functools import cache

from dsconfig.schema.version import NEWEST, Version

NAME = "deepspeed"
DIST_INFO, EGG_INFO = ".dist-info", ".egg-info"


@cache
def installed_or_newest() -> Version:
    """The DeepSpeed installed here, by its package metadata alone; else the newest known."""
    installed = _installed()
    try:
        return Version.parse(installed) if installed is not None else NEWEST
    except ValueError:
        return NEWEST


def _installed() -> str | None:
    """The release that Python would import; None where there is none.

    Its metadata lies in a folder ``deepspeed-X.Y.Z.dist-info`` beside it, so the name tells.
    ``importlib.metadata`` knows other forms, too, but normalises every name on the path and
    parses all that the metadata says, which is felt in a program as short as ``validate``.
    """
    for folder in map(str, sys.path):
        found = _metadata_in(folder)
        if len(found) == 1 and found[0].lower().startswith(f"{NAME}-"):
            release, standard, _ = found[0][len(NAME) + 1 :].partition(DIST_INFO)
            if standard:
                return release
        if found:
            return _opened()
    return None


def _metadata_in(folder: str) -> list[str]:
    """What is named as DeepSpeed's metadata; the folder itself where it has to be opened."""
    try:
        names = os.listdir(folder or ".")  # noqa: PTH208
    except NotADirectoryError:
        return [folder]  # an archive, which may hold packages
    except OSError:
        return []
    if folder.endswith(".egg"):
        return [folder]
    return [name for name in names if name[: len(NAME)].lower() == NAME and _is_metadata(name)]


def _is_metadata(name: str) -> bool:
    """Whether a name that begins like DeepSpeed's is that of its metadata."""
    stem, dot, kind = name.lower().rpartition(".")
    return dot + kind in (DIST_INFO, EGG_INFO) and stem.partition("-")[0] == NAME


def _opened() -> str | None:
    """The release as the metadata itself says."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(NAME)
    except PackageNotFoundError:
        return None

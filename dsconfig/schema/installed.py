"""Versions of the installed DeepSpeed, transformers and accelerate, without importing them."""

import os
import sys
from functools import cache

from dsconfig.schema.version import NEWEST, Version

NAME = "deepspeed"
DIST_INFO, EGG_INFO = ".dist-info", ".egg-info"


@cache
def installed_or_newest() -> Version:
    """Return the installed DeepSpeed release by package metadata, or the newest known."""
    installed = installed_release(NAME)
    try:
        return Version.parse(installed) if installed is not None else NEWEST
    except ValueError:
        return NEWEST


def installed_release(name: str) -> str | None:
    """Return the release that Python would import, or None.

    The directory name ``deepspeed-X.Y.Z.dist-info`` contains it. ``importlib.metadata`` supports
    other forms as well, but normalizes every name on the path and parses the metadata, which is
    slow compared to ``validate``.
    """
    for folder in map(str, sys.path):
        metadata = _metadata_in(folder, name)
        if len(metadata) == 1 and metadata[0].lower().startswith(f"{name}-"):
            release, standard, _ = metadata[0][len(name) + 1 :].partition(DIST_INFO)
            if standard:
                return release
        if metadata:
            return _from_metadata(name)
    return None


def _metadata_in(folder: str, package: str) -> list[str]:
    """Return names of a package's metadata in a folder, or the folder if it must be opened."""
    try:
        names = os.listdir(folder or ".")  # noqa: PTH208
    except NotADirectoryError:
        return [folder]  # an archive, which may contain packages
    except OSError:
        return []
    if folder.endswith(".egg"):
        return [folder]
    starts = (name for name in names if name[: len(package)].lower() == package)
    return [name for name in starts if _is_metadata(name, package)]


def _is_metadata(name: str, package: str) -> bool:
    """Return whether a name is that of a package's metadata."""
    stem, dot, kind = name.lower().rpartition(".")
    return dot + kind in (DIST_INFO, EGG_INFO) and stem.partition("-")[0] == package


def _from_metadata(name: str) -> str | None:
    """Return the release according to ``importlib.metadata``."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None

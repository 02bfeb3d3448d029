"""Releases of DeepSpeed as people name them on a command line."""

from dsconfig.commands.errors import UsageError
from dsconfig.schema.installed import installed_or_newest
from dsconfig.schema.version import OLDEST, Version


def release(text: str | None, *, option: str = "--deepspeed-version") -> Version:
    """The named release, else the installed one, else the newest known.

    Raises UsageError for what is no release, or one older than any that is known.
    """
    if text is None:
        return installed_or_newest()
    try:
        version = Version.parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if version < OLDEST:
        raise UsageError(f"{option}: nothing is known of releases before {OLDEST}")
    return version

"""One wording for files that cannot be read."""

import errno
import os

_MESSAGES = {
    errno.ENOENT: ("file not found", "check the path"),
    errno.ENOTDIR: ("file not found", "check the path"),
    errno.EACCES: ("permission denied", "grant read permission"),
    errno.EPERM: ("permission denied", "grant read permission"),
    errno.ELOOP: ("too many levels of symbolic links", "specify the file itself"),
    errno.ENAMETOOLONG: ("file name too long", "check the path"),
}


def message_and_help(error: Exception) -> tuple[str, str]:
    """Return the reason why a file cannot be read, and what to do."""
    number = error.errno if isinstance(error, OSError) else None
    return _MESSAGES.get(number or 0, (f"cannot be read: {error}", "check the path"))


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a file; False for a name that no file can have."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for long names


def exists(path: str | os.PathLike[str]) -> bool:
    """Return whether a path exists; False for a name that no file can have."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises for long names


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder; False for a name that no folder can have."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises for long names


def reason(error: OSError) -> str:
    """Return the reason why a file cannot be read or written."""
    known = _MESSAGES.get(error.errno or 0)
    return known[0] if known else str(error.strerror)

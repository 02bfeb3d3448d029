"""Files that commands write for the user."""

from pathlib import Path

from dsconfig.commands.errors import UsageError


def write(path: Path, text: str) -> None:
    """Write a text as UTF-8. Raises UsageError where the path cannot be written."""
    try:
        # A lone surrogate has no UTF-8; as an escape it is at least valid JSON.
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"-o {path}: {error.strerror}") from None

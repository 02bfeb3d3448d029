"""Usage errors of the command line."""

import sys
from collections.abc import Generator
from contextlib import contextmanager


class UsageError(Exception):
    """Wrong arguments, or input that cannot be read: exit code 2, one line on stderr."""


def error_line(message: str) -> None:
    """Print an error as one line on stderr, wrapped on a terminal."""
    from dsconfig.commands.text_table import fitted
    from dsconfig.report.render.terminal import visible

    line = f"dsconfig: error: {visible(message)}"
    print(fitted(line) if sys.stderr.isatty() else line, file=sys.stderr)


@contextmanager
def usage(about: str = "") -> Generator[None]:
    """Convert ValueError and OSError to UsageError, prefixed with ``about``."""
    prefix = f"{about}: " if about else ""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{prefix}{getattr(error, 'in_flags', error)}") from None
    except OSError as error:
        raise UsageError(f"{prefix or f'{error.filename}: '}{error.strerror}") from None

"""Usage errors of the command line."""

from collections.abc import Generator
from contextlib import contextmanager


class UsageError(Exception):
    """Wrong arguments, or input that cannot be read: exit code 2, one line on stderr."""


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

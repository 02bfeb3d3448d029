"""The one way a command says that it cannot do what was asked."""

from collections.abc import Generator
from contextlib import contextmanager


class UsageError(Exception):
    """Wrong arguments, or input that cannot be read: exit code 2, one line on stderr."""


@contextmanager
def usage(about: str = "") -> Generator[None]:
    """What is refused inside is the user's to mend: a UsageError, with ``about`` before it."""
    before = f"{about}: " if about else ""
    try:
        yield
    except ValueError as error:
        raise UsageError(f"{before}{error}") from None
    except OSError as error:
        raise UsageError(f"{before or f'{error.filename}: '}{error.strerror}") from None

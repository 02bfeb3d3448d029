"""Errors in what a user specified outside a config."""

from collections.abc import Generator
from contextlib import contextmanager

from dsconfig import os_errors


class UsageError(ValueError):
    """Wrong arguments or project settings, or input that cannot be read."""


@contextmanager
def usage(about: str = "") -> Generator[None]:
    """Convert ValueError and OSError to UsageError, prefixed with ``about``."""
    prefix = f"{about}: " if about else ""
    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{prefix}{error}") from None
    except OSError as error:
        raise UsageError(f"{prefix or f'{error.filename}: '}{os_errors.reason(error)}") from None

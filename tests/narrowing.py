"""Values that a test requires."""

from typing import TypeVar

T = TypeVar("T")


def not_none(value: T | None) -> T:
    """Return the value. Raises AssertionError if it is None."""
    assert value is not None
    return value

"""Values that a test requires."""

from typing import TypeVar

T = TypeVar("T")


def not_none(value: T | None) -> T:
    """Return the value. Raises AssertionError if it is None."""
    assert value is not None
    return value


def of_type(value: object, kind: type[T]) -> T:
    """Return the value. Raises AssertionError if it is not an instance of ``kind``."""
    assert isinstance(value, kind)
    return value

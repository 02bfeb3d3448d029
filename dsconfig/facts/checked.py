"""Numbers given by flags or by programs, judged where they come in."""

from math import inf

from dsconfig.facts.errors import FactError


def above_zero(value: object, flag: str) -> None:
    """A count, or None for one that was not given. Raises FactError for anything else."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FactError(flag, f"{value!r} is not a count; give an integer above zero")


def not_negative(value: object, flag: str) -> None:
    """A finite number from zero on, or None. Raises FactError for anything else."""
    if value is None:
        return
    if not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < inf:
        return
    raise FactError(flag, f"{value!r} is not usable; give a finite number, zero or above")

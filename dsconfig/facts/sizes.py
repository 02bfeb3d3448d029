"""Numbers as people type them: ``13B``, ``700M``, ``13e9`` parameters; ``512GB``, ``80GiB``."""

import re
from math import inf

from dsconfig.facts.errors import FactError

_NUMBER = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?(?:e\+?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "bn": 10**9, "t": 10**12}
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
    **{letter: 1000**power for power, letter in enumerate("kmgt", 1)},
}


def count(text: str | int | float, flag: str) -> int:
    """A number of parameters. Raises FactError when it is not a positive number."""
    return _read(text, flag, _COUNT_UNITS, "write a count like 13e9, 13B or 700M")


def byte_count(text: str | int | float, flag: str) -> int:
    """A size in bytes. ``GB`` is 10^9, ``GiB`` 2^30. Raises FactError on anything else."""
    return _read(text, flag, _BYTE_UNITS, "write a size like 512GB, 80GiB or a number of bytes")


def _read(text: str | int | float, flag: str, units: dict[str, int], remedy: str) -> int:
    match = _NUMBER.fullmatch(str(text))
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise FactError(flag, f"{text!r} is not a size; {remedy}")
    number = float(match[1].replace("_", "").replace(",", "")) * unit
    if number == inf:
        raise FactError(flag, f"{text!r} is beyond any machine; {remedy}")
    value = round(number)
    if value < 1:
        raise FactError(flag, f"{text!r} is not above zero; {remedy}")
    return value

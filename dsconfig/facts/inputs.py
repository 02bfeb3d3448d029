"""What people give: numbers as they type them, and files of settings; read, judged, or refused."""

import json
import re
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, cast

from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.facts import yaml_text


class FactError(ValueError):
    """A fact that cannot be used. ``flag`` is the option it came from; the text has the remedy."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(f"{flag}: {message}")
        self.flag = flag


def require_positive(value: object, flag: str) -> None:
    """A count, or None for one that was not given. Raises FactError for anything else."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FactError(flag, f"{value!r} is not a count; give an integer above zero")


def require_non_negative(value: object, flag: str) -> None:
    """A finite number from zero on, or None. Raises FactError for anything else."""
    if value is None:
        return
    if not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < inf:
        return
    raise FactError(flag, f"{value!r} is not usable; give a finite number, zero or above")


_NUMBER = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?(?:e\+?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "bn": 10**9, "t": 10**12}
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
    **{letter: 1000**power for power, letter in enumerate("kmgt", 1)},
}


MOST_PARAMETERS = 10**15
"""Above any model; beyond, widths leave what a float can hold."""


def parse_count(text: str | int | float, flag: str) -> int:
    """A number of parameters. Raises FactError when it is not a positive number."""
    remedy = "write a count like 13e9, 13B or 700M"
    counted = _size(text, flag, _COUNT_UNITS, remedy)
    if counted > MOST_PARAMETERS:
        raise FactError(flag, f"{counted:.3g} parameters are beyond any model; {remedy}")
    return counted


def parse_bytes(text: str | int | float, flag: str) -> int:
    """A size in bytes. ``GB`` is 10^9, ``GiB`` 2^30. Raises FactError on anything else."""
    return _size(text, flag, _BYTE_UNITS, "write a size like 512GB, 80GiB or a number of bytes")


def _size(text: str | int | float, flag: str, units: dict[str, int], remedy: str) -> int:
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


def read_file(path: str | Path, flag: str) -> Mapping[str, Any]:
    """The mapping in a JSON or YAML file. Raises FactError when it cannot be read as one."""
    file = Path(path)
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise FactError(flag, f"{file}: {error.strerror}; name a file that can be read") from None
    except UnicodeDecodeError:
        raise FactError(flag, f"{file} is not UTF-8 text; name a JSON or YAML file") from None
    value = _yaml(text, file, flag) if file.suffix in (".yaml", ".yml") else _json(text, file, flag)
    if not isinstance(value, dict):
        raise FactError(flag, f"{file} holds no mapping; it must be an object of names and values")
    return cast(Mapping[str, Any], value)


def _json(text: str, file: Path, flag: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise FactError(flag, f"{file} is not JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise FactError(flag, f"{file} is nested too deep to be read; name another file") from None
    except ValueError as error:  # an integer of more digits than Python reads
        raise FactError(flag, f"{file} cannot be read: {error}") from None


def _yaml(text: str, file: Path, flag: str) -> object:
    try:
        return yaml_text.load(text)
    except ValueError as error:
        raise FactError(flag, f"{file} is not YAML: {error}") from None

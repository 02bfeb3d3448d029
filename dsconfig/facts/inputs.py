"""Parsing and validation of user input: numbers, sizes and settings files."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from dsconfig import os_errors
from dsconfig.facts import naming
from dsconfig.lazy_imports import lazy_imports
from dsconfig.source.file_kinds import SCRIPTS
from dsconfig.source.plain import TOO_MANY_DIGITS, shown, without_large_integers
from dsconfig.source.pointer import dotted, is_too_deep

with lazy_imports():
    from dsconfig.facts import yaml_text
    from dsconfig.source import shell_script


class FactError(ValueError):
    """A fact that cannot be used; ``argument`` is the argument of :func:`gather` it came from."""

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(f"{naming.subject(argument)}: {message}")
        self.argument = argument


LARGEST_SIZE = 2**63 - 1
"""Largest size of a tensor, as in PyTorch; products of several fit in a float."""


def require_positive(value: object, argument: str) -> None:
    """Raise FactError unless the value is None or a positive integer below 2^63."""
    if value is None or (type(value) is int and 1 <= value <= LARGEST_SIZE):
        return
    limit = " below 2^63" if isinstance(value, int) and value > LARGEST_SIZE else ""
    raise FactError(argument, f"{shown(value)} is not a positive integer{limit}")


def size_in_model(name: str, value: object, *, least: int = 1) -> int:
    """Return a size of a config.json. Raises FactError unless it is an integer below 2^63."""
    if type(value) is int and least <= value <= LARGEST_SIZE:
        return value
    wanted = "a positive integer" if least else "an integer of at least 0"
    limit = " below 2^63" if isinstance(value, int) and value > LARGEST_SIZE else ""
    raise FactError("model", f"{name} is {shown(value)}; it must be {wanted}{limit}")


LARGEST = sys.float_info.max


def require_non_negative(value: object, argument: str, key: str = "") -> None:
    """Raise FactError unless the value (of a key in a file) is None or a finite number >= 0."""
    if value is None:
        return
    if not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= LARGEST:
        return
    raise FactError(argument, f"{key}{shown(value)} is not a finite number of at least 0")


_NUMBER = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?(?:e\+?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "bn": 10**9, "t": 10**12}
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}i": 1024**power for power, letter in enumerate("kmgt", 1)},
    **{letter: 1000**power for power, letter in enumerate("kmgt", 1)},
}


MAX_PARAMETERS = 10**15
"""Larger than any model; layer widths derived from more would overflow a float."""


def parse_count(text: str | int | float, argument: str) -> int:
    """Return a number of parameters. Raises FactError if it is not a positive number."""
    remedy = "write a count like 13e9, 13B or 700M"
    limit = (MAX_PARAMETERS, "is more than any model has")
    return _size(text, argument, _COUNT_UNITS, remedy, *limit)


SMALLEST_MEMORY = 2**20
"""Smaller sizes are numbers of GiB or MiB whose unit is missing."""


def parse_bytes(text: str | int | float, argument: str) -> int:
    """Return a size in bytes; ``GB`` is 10^9, ``GiB`` 2^30.

    Raises FactError if it is invalid, or below 1 MiB: then its unit is missing.
    """
    remedy = "write a size like 512GB, 80GiB or a number of bytes"
    limit = (LARGEST_SIZE, "is larger than any machine")
    size = _size(text, argument, _BYTE_UNITS, remedy, *limit)
    if size < SMALLEST_MEMORY:
        unit = "GiB" if size < 4096 else "MiB"  # nvidia-smi lists MiB
        plain = str(text).strip()
        wanted = f"write {plain}{unit}" if plain.isdigit() else remedy
        raise FactError(argument, f"{shown(text)} is less than 1 MiB; {wanted}")
    return size


def _size(
    text: str | int | float,
    argument: str,
    units: dict[str, int],
    remedy: str,
    most: int,
    too_large: str,
) -> int:
    if isinstance(text, int) and text > most:  # Python may refuse to convert it to a string
        raise FactError(argument, f"{shown(text)} {too_large}; {remedy}")
    match = _NUMBER.fullmatch(str(text))
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise FactError(argument, f"{shown(text)} is not a valid number or size; {remedy}")
    number = float(match[1].replace("_", "").replace(",", "")) * unit
    if number > most:
        raise FactError(argument, f"{shown(text)} {too_large}; {remedy}")
    value = round(number)
    if value < 1:
        raise FactError(argument, f"{shown(text)} is not positive; {remedy}")
    return value


def read_file(path: str | Path, argument: str) -> Mapping[str, Any]:
    """Return the mapping in a JSON or YAML file, or the options of the training command of a shell
    script. Raises FactError if it cannot be read."""
    file = Path(path)
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise FactError(argument, f"{file}: {os_errors.reason(error)}") from None
    except UnicodeDecodeError:
        raise FactError(
            argument, f"{file} is not UTF-8 text; specify a JSON or YAML file"
        ) from None
    except ValueError as error:  # a null character in the name
        raise FactError(argument, f"{shown(path)} cannot be read: {error}") from None
    read = _shell if file.suffix in SCRIPTS else _json
    value = (_yaml if file.suffix in (".yaml", ".yml") else read)(text, file, argument)
    if not isinstance(value, dict):
        raise FactError(argument, f"{file} must contain a JSON object or a YAML mapping")
    require_in_range(cast(Mapping[str, Any], value), argument, f"{file}: ")
    return cast(Mapping[str, Any], value)


def require_in_range(values: Mapping[str, Any], argument: str, file: str = "") -> None:
    """Raise FactError for an integer outside the range of a float; ``file`` is a prefix."""
    if is_too_deep(values):
        raise FactError(argument, f"{file}nested too deeply")
    _, large = without_large_integers(values)
    if large:
        key, number = dotted(large[0].pointer), shown(large[0].value)
        raise FactError(argument, f"{file}{key} is {number}; write a number below 1.8e308")


def _shell(text: str, file: Path, argument: str) -> object:
    script = shell_script.training_command(text)
    if script is None:
        raise FactError(argument, f"{file} contains no command that starts a training program")
    named = script.arguments_file
    paths = [] if named is None else [Path(named), file.parent / named]
    found = next((path for path in paths if os_errors.is_file(path)), None)
    return {**(read_file(found, argument) if found else {}), **script.content}


def _json(text: str, file: Path, argument: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise FactError(argument, f"{file} is not valid JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise FactError(argument, f"{file} is nested too deeply") from None
    except ValueError:
        raise FactError(argument, f"{file} cannot be read: {TOO_MANY_DIGITS}") from None


def _yaml(text: str, file: Path, argument: str) -> object:
    try:
        return yaml_text.load(text)
    except ValueError as error:
        raise FactError(argument, f"{file} is not valid YAML: {error}") from None

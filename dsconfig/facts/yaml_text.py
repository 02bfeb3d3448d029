"""Values of YAML files, and the line of each key."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import yaml

from dsconfig import os_errors
from dsconfig.report import Position, Range
from dsconfig.source import shell_script, yaml_numbers
from dsconfig.source.file_kinds import SCRIPTS


def load(text: str) -> object:
    """Return the value of a YAML text. Raises ValueError if it is invalid."""
    try:
        # 1e-4 is a string in YAML 1.1, but the programs convert it to a number.
        return yaml.load(text, Loader=yaml_numbers.Loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None)
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{problem}{where}" if problem else str(error).splitlines()[0]) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def location_of(path: str | Path, key: str) -> str:
    """Return ``file:line`` of a dotted key, or only the file if the key is not found."""
    with suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
        # A pipe was already read for its values and would block.
        line = key_lines(path).get(key) if os_errors.is_file(path) else None
        return f"{path}:{line}" if line else f"{path}"
    return f"{path}"


def as_number(text: str) -> str:
    """Return a number with an exponent as YAML 1.1 writes it: with a dot and a signed exponent."""
    mantissa, power = text.lower().replace("_", "").split("e")
    mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
    mantissa = mantissa.replace(".", "0.", 1) if mantissa.lstrip("-+")[0] == "." else mantissa
    return f"{mantissa}e{power}" if power[0] in "+-" else f"{mantissa}e+{power}"


def texts_for_numbers(path: str | Path) -> Mapping[str, str]:
    """Return the top-level numbers, such as 1e-4, that PyYAML reads as strings."""
    if not os_errors.is_file(path):  # a pipe can be read only once
        return {}
    content: object = yaml.load(Path(path).read_text("utf-8-sig"), Loader=yaml_numbers.SafeLoader)
    entries = cast("dict[object, object]", content) if isinstance(content, dict) else {}
    texts = {f"{key}": value for key, value in entries.items() if isinstance(value, str)}
    return {key: text for key, text in texts.items() if yaml_numbers.EXPONENT.fullmatch(text)}


def key_lines(path: str | Path) -> Mapping[str, int]:
    """Return the 1-based line of every key by dotted path; JSON is parsed as YAML."""
    return dict(_keys_below(_node(path), "", set()))


def key_range(path: str | Path, key: str) -> Range | None:
    """Return the position of a dotted key, or None if the file cannot be read or lacks the key."""
    with suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
        if Path(path).suffix in SCRIPTS:
            return shell_script.option_range(Path(path).read_text("utf-8"), key)
        if os_errors.is_file(path):  # a pipe was already read
            node, entry = _node(path), None
            for name in key.split("."):
                pairs = node.value if isinstance(node, yaml.MappingNode) else ()
                entry, node = next((pair for pair in pairs if pair[0].value == name), (None, None))
            if entry is not None:
                marks = (entry.start_mark, entry.end_mark)
                return Range(*(Position(mark.line + 1, mark.column + 1) for mark in marks))
    return None


def _node(path: str | Path) -> Any:
    """Return the root node of a YAML or JSON file."""
    text = Path(path).read_text("utf-8-sig")
    readable = yaml_numbers.from_json(text) if yaml_numbers.is_json(text) else text
    reader: Any = yaml_numbers.SafeLoader(readable)
    return reader.get_single_node()


def _keys_below(node: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    # Expand each alias target once: recursive aliases never end.
    if node is None or node.id != "mapping" or id(node) in seen:
        return
    seen.add(id(node))
    for key, child in node.value:
        path = f"{prefix}{key.value}"
        yield path, key.start_mark.line + 1
        yield from _keys_below(child, f"{path}.", seen)

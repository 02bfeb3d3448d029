"""YAML files of facts: their values, and the line of each key."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import yaml

from dsconfig.source import yaml_numbers


def load(text: str) -> object:
    """What a YAML text holds. Raises ValueError where it is none."""
    try:
        # The programs make a number of the text 1e-4, so that it is one here.
        return yaml.load(text, Loader=yaml_numbers.Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    except RecursionError:
        raise ValueError("it is nested too deep to be read") from None


def place(path: str | Path, key: str) -> str:
    """``file:line`` of a key by dotted path; the name alone where it is no file with that key."""
    with suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
        # A pipe was read for its values, and is empty or waits for ever.
        line = key_lines(path).get(key) if Path(path).is_file() else None
        return f"{path}:{line}" if line else f"{path}"
    return f"{path}"


def as_number(text: str) -> str:
    """A number with an exponent as YAML 1.1 has it: with a dot, and with a sign behind the e."""
    mantissa, power = text.lower().replace("_", "").split("e")
    whole = mantissa if "." in mantissa else f"{mantissa}.0"
    whole = whole.replace(".", "0.", 1) if whole.lstrip("-+")[0] == "." else whole
    return f"{whole}e{power}" if power[0] in "+-" else f"{whole}e+{power}"


def texts_for_numbers(path: str | Path) -> Mapping[str, str]:
    """The top-level values that are numbers to people and texts to PyYAML, such as 1e-4."""
    if not Path(path).is_file():  # a pipe, which can be read once
        return {}
    held: object = yaml.safe_load(Path(path).read_text("utf-8-sig"))
    entries = cast("dict[object, object]", held) if isinstance(held, dict) else {}
    texts = {f"{key}": value for key, value in entries.items() if isinstance(value, str)}
    return {key: text for key, text in texts.items() if yaml_numbers.EXPONENT.fullmatch(text)}


def key_lines(path: str | Path) -> Mapping[str, int]:
    """The 1-based line of every key, by dotted path; JSON goes the same way, as YAML."""
    text = Path(path).read_text("utf-8-sig")
    is_json = yaml_numbers.is_json(text)
    reader: Any = yaml.SafeLoader(yaml_numbers.from_json(text) if is_json else text)
    return dict(_keys_below(reader.get_single_node(), "", set()))


def _keys_below(node: Any, prefix: str, told: set[int]) -> Iterator[tuple[str, int]]:
    # What several aliases share has one place: written out it may be endless.
    if node is None or node.id != "mapping" or id(node) in told:
        return
    told.add(id(node))
    for key, child in node.value:
        path = f"{prefix}{key.value}"
        yield path, key.start_mark.line + 1
        yield from _keys_below(child, f"{path}.", told)

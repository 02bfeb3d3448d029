"""JSON and YAML files that hold facts, as plain mappings."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from dsconfig.facts.errors import FactError


def read(path: str | Path, flag: str) -> Mapping[str, Any]:
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


def lines(path: str | Path) -> Mapping[str, int]:
    """The 1-based line of every key, by dotted path; empty where no YAML reader is installed.

    JSON goes the same way: to a YAML reader it is YAML.
    """
    try:
        from ruamel.yaml import YAML
    except ImportError:
        return {}
    root: Any = YAML(pure=True).compose(Path(path))  # pyright: ignore[reportUnknownMemberType]
    return dict(_keys_below(root, ""))


def _keys_below(node: Any, prefix: str) -> Iterator[tuple[str, int]]:
    if node is None or node.id != "mapping":
        return
    entries: list[tuple[Any, Any]] = node.value
    for key, child in entries:
        path = f"{prefix}{key.value}"
        yield path, key.start_mark.line + 1
        yield from _keys_below(child, f"{path}.")


def _json(text: str, file: Path, flag: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise FactError(flag, f"{file} is not JSON: {error.msg} at {where}") from None


def _yaml(text: str, file: Path, flag: str) -> object:
    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import YAMLError
    except ImportError:
        remedy = "install dsconfig-zero[yaml], or give the same values as JSON"
        raise FactError(flag, f"{file}: no YAML reader is installed; {remedy}") from None
    try:
        return YAML(typ="safe", pure=True).load(text)  # pyright: ignore[reportUnknownMemberType]
    except YAMLError as error:
        first = str(error).splitlines()[0]
        raise FactError(flag, f"{file} is not YAML: {first}") from None

"""The explanation of a key, a rule or a config file, by name."""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dsconfig import os_errors
from dsconfig.facts.naming import named
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import rule_pages as installed_pages
from dsconfig.report.writers import one_line
from dsconfig.runtimes.base import AUTO
from dsconfig.schema.paths import ROOT, KeyPath
from dsconfig.source.plain import shown
from dsconfig.source.pointer import is_block

with lazy_imports():
    from dsconfig.checks import registry
    from dsconfig.reference import keys, rule_pages
    from dsconfig.schema import catalogue, spelling
    from dsconfig.source import file_kinds, reading

if TYPE_CHECKING:
    from dsconfig.checks.rule import Rule
    from dsconfig.source import Document

_CODE = re.compile(r"(?:DSC)?(\d{3})", re.IGNORECASE)
_FILE = re.compile(r".+\.(?:json|hjson|ya?ml|py)", re.IGNORECASE)


def is_file(name: str) -> bool:
    """Return whether a name is a config file rather than a key or a rule."""
    return name == "-" or _FILE.fullmatch(name) is not None or os_errors.is_file(name)


def rule_code(name: str) -> str | None:
    """Return the code of a rule, by code or name; None if there is none."""
    rule = registry.rule_of(name)
    return None if rule is None else rule.code


def text_of(name: str) -> str:
    """Return the explanation of a key, a rule or a file.

    The page of a rule is Markdown. Raises ValueError with suggestions for an unknown name.
    """
    if is_file(name):
        return text_of_file(reading.read(name))
    rule = registry.rule_of(name)
    if rule is not None:
        return rule_pages.page(rule).rstrip("\n")
    found = _keys(name)
    if len(found) == 1:
        return keys.key_as_text(found[0])
    lines = (f"  {key.path}\n      {key.doc}" for key in found)
    return "\n".join((f"{len(found)} keys are named {name}:", "", *lines))


def data_of(name: str) -> dict[str, Any]:
    """Return the JSON form of an explanation. Raises ValueError like ``text_of``."""
    if is_file(name):
        return data_of_file(reading.read(name))
    rule = registry.rule_of(name)
    if rule is None:
        return {"keys": [keys.key_as_data(key) for key in _keys(name)]}
    return {"rule": rule_as_data(rule)}


def _keys(name: str) -> list["catalogue.Key"]:
    """Return the keys with a name. Raises ValueError with suggestions if there is none."""
    try:
        return keys.keys_named(name)
    except ValueError:
        near = suggestions(name)
        hint = f"; did you mean {_alternatives(near)}?" if near else ""
        kind = "rule" if _CODE.fullmatch(name) else "key or rule"
        raise ValueError(f"unknown {kind} {shown(name)}{hint}") from None


def _alternatives(names: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def suggestions(name: str) -> list[str]:
    """Return up to three keys and rules whose name is similar."""
    number = _CODE.fullmatch(name)
    if number is not None:
        code = rule_code(f"DSC{number[1]}")
        family = sorted(each for each in registry.rules() if each[:5] == f"DSC{number[1]}"[:5])
        return [code] if code else family[:3]
    known = [key.path for key in tuple(catalogue.keys())]
    last = {path.rpartition(".")[2] for path in known}
    wanted = spelling.plain(name)
    near = [spelling.closest(name, known), spelling.closest(name, last)]
    begin = [path for path in known if wanted and spelling.plain(path).startswith(wanted)]
    contain = [path for path in known if len(wanted) > 3 and wanted in spelling.plain(path)]
    shortest = sorted(begin, key=len) or sorted(contain, key=len)
    rules = [spelling.closest(name, [rule.name for rule in registry.rules().values()])]
    found = (*near, *shortest, *rules)
    names = list(dict.fromkeys(each for each in found if each))
    paths = [path for path in names if "." in path]
    return [each for each in names if not any(path.endswith(f".{each}") for path in paths)][:3]


def rule_as_data(rule: "Rule") -> dict[str, Any]:
    """Return the JSON form of a rule."""
    return {
        "code": rule.code,
        "name": rule.name,
        "effect": rule.effect,
        "severity": rule.effect.severity,
        "late": rule.late,
        "doc": rule.doc,
        "bad": rule.bad.config,
        "good": rule.good.config,
        "url": installed_pages.url(rule.code),
    }


Entry = tuple[KeyPath, Any, int | None]
"""Dotted path, value and line of a key in a file."""


def data_of_file(document: "Document") -> dict[str, Any]:
    """Return the JSON form of every key that a file sets. Raises ValueError for other files."""
    return {"file": document.name, "keys": list(map(_entry_data, _entries(document)))}


def text_of_file(document: "Document", program: str | None = None) -> str:
    """Return the explanation of every key that a file sets. Raises ValueError for other files.

    ``program`` limits the handling of "auto" to one program; default: all.
    """
    lines = [f"{document.name}: every key that the file sets", ""]
    for path, value, line in _entries(document):
        place = f"{line}: " if line else ""
        shown = "" if is_block(value) else f" = {json.dumps(value, ensure_ascii=False)}"
        lines.append(one_line(f"{place}{path}{shown}"))
        lines += (f"    {text}" for text in _about(path, value, program))
    if program is not None and any(value == AUTO for _, value, _ in _entries(document)):
        lines += ["", 'How other programs handle "auto": --runtime PROGRAM, or explain one key.']
    return "\n".join(lines)


def _about(path: KeyPath, value: Any, program: str | None) -> Iterator[str]:
    key = catalogue.find(path)
    if key is None:
        near = suggestions(path.name)
        yield "not a key of a ds_config" + (f"; did you mean {near[0]}?" if near else "")
        return
    yield key.doc
    if is_block(value) and key.is_block:
        return
    defaults = list(keys.defaults(key))
    if defaults:
        yield f"default: {defaults[0]}"
    if value == AUTO:
        handling = keys.auto(key)
        yield from (f"auto, {name}: {text}" for name, text in handling if program in (None, name))
    if key.status is not catalogue.KeyStatus.LIVE:
        yield keys.supported_releases(key)


def _entry_data(entry: Entry) -> dict[str, Any]:
    path, value, line = entry
    key = catalogue.find(path)
    about = {"doc": None} if key is None else keys.key_as_data(key)
    return {**about, "path": str(path), "value": value, "line": line}


def _entries(document: "Document") -> Iterator[Entry]:
    config: object = document.value
    if not is_block(config) or document.is_unreadable:
        reason = document.diagnostics[0].message if document.diagnostics else "not an object"
        raise ValueError(f"{document.name}: {reason}")
    if not config:
        problem = next((each.message for each in document.diagnostics), "the file sets no keys")
        raise ValueError(f"{document.name}: {problem}")
    kind = file_kinds.another_kind(config)
    if kind is None and not any(catalogue.find((name,)) for name in config):
        kind = file_kinds.UNRELATED
    if kind is not None:
        raise ValueError(f"{document.name} is {kind.name}, not a ds_config: {kind.advice(named)}")
    yield from _below(document, config, ROOT)


def _below(document: "Document", block: dict[str, Any], path: KeyPath) -> Iterator[Entry]:
    for name, value in block.items():
        here = path / name
        place = document.range(here.pointer, key=True)
        yield here, value, place.start.line if place else None
        key = catalogue.find(here)
        if is_block(value) and (key is None or key.is_block or path):
            yield from _below(document, value, here)

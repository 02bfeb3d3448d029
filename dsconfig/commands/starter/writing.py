"""A starter as text: HJSON with remarks, or strict JSON with the remarks in a section of ours."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from dsconfig.commands.starter.choosing import AUTO, Starter
from dsconfig.source.document import REMARKS, SECTION
from dsconfig.source.pointer import join

INDENT = "  "


def written(starter: Starter, *, hjson: bool) -> str:
    """The file. With ``hjson`` the reasons are // remarks, which transformers and accelerate
    do not read; without, they stand in our own section, which every program reads past."""
    if not hjson:
        config = {SECTION: _remarks(starter), **starter.config}
        return "\n".join(("{", *_entries(config, (), {}), "}")) + "\n"
    lines = [
        "{",
        f"{INDENT}// {starter.title}.",
        f"{INDENT}// `dsconfig explain KEY` says what a key does.",
        f"{INDENT}// For deepspeed and dsengine; transformers and accelerate read no such remarks.",
        "",
        *_entries(starter.config, (), starter.reasons),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _remarks(starter: Starter) -> dict[str, Any]:
    """What the config is for, and the reason for each choice by the key it is about."""
    remarks: dict[str, str] = {"this file": f"{starter.title}; see `dsconfig explain KEY`"}
    for path, value in _with_parts(starter.config, ()):
        reason = starter.reasons.get(join(*path)) if path else None
        if reason and reason not in remarks.values():
            remarks[AUTO if value == AUTO else ".".join(path)] = reason
    return {REMARKS: remarks}


def _with_parts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A value and all that it holds, outer ones first, with their paths."""
    yield path, value
    if isinstance(value, Mapping):
        for name, inner in cast(Mapping[str, Any], value).items():
            yield from _with_parts(inner, (*path, name))


def _entries(
    block: Mapping[str, Any], path: tuple[str, ...], reasons: Mapping[str, str]
) -> Iterator[str]:
    indent = INDENT * (len(path) + 1)
    last_reason = ""
    for position, (name, value) in enumerate(block.items()):
        comma = "," if position + 1 < len(block) else ""
        reason = reasons.get(join(*path, name), "")
        if reason and reason != last_reason:
            yield f"{indent}// {reason}"
        last_reason = reason
        if isinstance(value, Mapping):
            yield f"{indent}{json.dumps(name)}: {{"
            yield from _entries(cast(Mapping[str, Any], value), (*path, name), reasons)
            yield f"{indent}}}{comma}"
        else:
            yield f"{indent}{json.dumps(name)}: {json.dumps(value)}{comma}"

"""A starter as text: JSON with remarks, or strict JSON with the remarks as keys."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from dsconfig.commands.starter.choosing import Starter
from dsconfig.source.pointer import join

INDENT = "  "


def written(starter: Starter, *, hjson: bool) -> str:
    """The file. With ``hjson`` the reasons are // remarks; without, one key at the top."""
    if not hjson:
        remarked = {"//": f"{starter.title}; see `dsconfig explain KEY`", **starter.config}
        return json.dumps(remarked, indent=2) + "\n"
    lines = [
        "{",
        f"{INDENT}// {starter.title}.",
        f"{INDENT}// `dsconfig explain KEY` says what a key does.",
        "",
        *_entries(starter.config, (), starter.reasons),
        "}",
    ]
    return "\n".join(lines) + "\n"


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

"""Index of live keys by name, for misspelled and misplaced keys.

Searching the declarations would import the modules of all blocks. The index is generated from them
as ``key_index.json``; a test checks that it is up to date.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dsconfig.schema.paths import KeyPath

FILE = Path(__file__).with_name("key_index.json")


def is_live(path: KeyPath) -> bool:
    """Return whether the newest release reads a key at a path; False below user-defined names."""
    return path.parent.dotted in _index()["blocks_with"].get(path.name, ())


def paths_of(name: str) -> tuple[KeyPath, ...]:
    """Return the paths of keys with a name or alias, except below user-defined names."""
    blocks = _index()["blocks_with"].get(name, ())
    return tuple(KeyPath.parse(block) / name for block in blocks)


def canonical_path(path: tuple[str, ...]) -> KeyPath:
    """Return a path with aliases replaced by canonical names."""
    own = KeyPath()
    for name in path:
        own /= _index()["own_names"].get((own / name).dotted, name)
    return own


def name_in_block(path: KeyPath, block: Mapping[str, Any]) -> str:
    """Return the name that ``block`` uses for the key at a path, or its canonical name."""
    if block.get(path.name) is not None:
        return path.name
    aliases = _aliases().get(path, ())
    return next((alias for alias in aliases if block.get(alias) is not None), path.name)


@cache
def _index() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(FILE.read_text("utf-8"))


@cache
def _aliases() -> Mapping[KeyPath, list[str]]:
    aliases: dict[KeyPath, list[str]] = {}
    for written, own in _index()["own_names"].items():
        alias = KeyPath.parse(written)
        aliases.setdefault(alias.parent / own, []).append(alias.name)
    return aliases


def declared() -> dict[str, dict[str, Any]]:
    """Build the index from the declarations: blocks by key name, canonical names by alias."""
    from dsconfig.schema.catalogue import KeyStatus, keys

    blocks_with: dict[str, dict[str, None]] = {}
    own_names: dict[str, str] = {}
    for key in keys():
        if key.status is not KeyStatus.LIVE or "*" in key.path or "[]" in key.path:
            continue
        block = key.path.rpartition(".")[0]
        for name in (key.name, *key.aliases):
            blocks_with.setdefault(name, {})[block] = None
        own_names |= {f"{block}.{alias}": key.name for alias in key.aliases}
    return {
        "blocks_with": {name: list(blocks) for name, blocks in sorted(blocks_with.items())},
        "own_names": own_names,
    }


def to_text(index: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the index as JSON, one name per line."""
    parts: list[str] = []
    for title, entries in index.items():
        lines = (f"    {json.dumps(name)}: {json.dumps(at)}" for name, at in entries.items())
        parts.append(f"  {json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(parts) + "\n}\n"

"""Where each live key is_live, by its names: what misplaced keys are looked up in, and all others.

To ask the declarations takes the modules of all blocks, and a misspelt key must not cost more
than the rest of the file. So the answer is written down in ``key_index.json``, made from the
declarations like all that is generated; a test holds the two together.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("key_index.json")
KeyPath = tuple[str, ...]


def is_live(path: KeyPath) -> bool:
    """Whether DeepSpeed's newest release has a key at a path; False below names of the user's."""
    return ".".join(path[:-1]) in _index()["blocks_with"].get(path[-1], ())


def paths_of(name: str) -> tuple[KeyPath, ...]:
    """The full paths of the keys with a name or alias; below names of the user's, none."""
    blocks = _index()["blocks_with"].get(name, ())
    return tuple((*block.split("."), name) if block else (name,) for block in blocks)


def canonical_path(path: KeyPath) -> KeyPath:
    """The path under the keys' own names, whatever aliases it is written with."""
    own: KeyPath = ()
    for name in path:
        own = (*own, _index()["own_names"].get(".".join((*own, name)), name))
    return own


def name_in_block(path: str, block: Mapping[str, Any]) -> str:
    """The name under which ``block`` has the key at a dotted path; its own where it has none."""
    outer, _, name = path.rpartition(".")
    if block.get(name) is not None:
        return name
    aliases = _aliases().get(f"{outer}.{name}", ())
    return next((alias for alias in aliases if block.get(alias) is not None), name)


@cache
def _index() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(FILE.read_text("utf-8"))


@cache
def _aliases() -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for written, own in _index()["own_names"].items():
        block, _, alias = written.rpartition(".")
        found.setdefault(f"{block}.{own}", []).append(alias)
    return found


def declared() -> dict[str, dict[str, Any]]:
    """The blocks with a key of each name, and the own name of each alias, off the declarations."""
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
    """The file: one name to a line."""
    parts: list[str] = []
    for title, entries in index.items():
        lines = (f"    {json.dumps(name)}: {json.dumps(at)}" for name, at in entries.items())
        parts.append(f"  {json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(parts) + "\n}\n"

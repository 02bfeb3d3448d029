"""Where each live key lives, by its names: what misplaced keys are looked up in, and all others.

To ask the declarations takes the modules of all blocks, and a misspelt key must not cost more
than the rest of the file. So the answer is written down: ``python -m dsconfig.schema.homes``
makes ``homes.json`` from the declarations, and a test holds the two together.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("homes.json")


def lives(path: tuple[str, ...]) -> bool:
    """Whether DeepSpeed's newest release has a key at a path; False below names of the user's."""
    return ".".join(path[:-1]) in _blocks_with().get(path[-1], ())


def homes_of(name: str) -> tuple[tuple[str, ...], ...]:
    """The full paths of the keys with a name or alias; below names of the user's, none."""
    blocks = _blocks_with().get(name, ())
    return tuple((*block.split("."), name) if block else (name,) for block in blocks)


@cache
def _blocks_with() -> Mapping[str, list[str]]:
    return json.loads(FILE.read_text("utf-8"))


def declared() -> dict[str, list[str]]:
    """The dotted paths of the blocks with a key of each name, read off the declarations."""
    from dsconfig.schema.catalogue import Status, keys

    found: dict[str, list[str]] = {}
    for key in keys():
        if key.status is not Status.LIVE or "*" in key.path or "[]" in key.path:
            continue
        block = key.path.rpartition(".")[0]
        for name in (key.name, *key.aliases):
            blocks = found.setdefault(name, [])
            if block not in blocks:
                blocks.append(block)
    return dict(sorted(found.items()))


def to_text(blocks: Mapping[str, list[str]]) -> str:
    """The file: one name to a line."""
    lines = (f"  {json.dumps(name)}: {json.dumps(where)}" for name, where in blocks.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(to_text(declared()), "utf-8")

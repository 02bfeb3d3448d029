"""Meaning of a config with its values as DeepSpeed's models convert them."""

from typing import Any

from dsconfig.runtimes import reading
from dsconfig.schema.meaning import Meaning, meaning
from dsconfig.schema.version import Version
from dsconfig.source.pointer import copied, is_block, value_at


def read_meaning(config: dict[str, Any], version: Version) -> Meaning:
    """Return the meaning of a config for a release that converts values such as ``"3"`` to 3."""
    converted = copied(config)
    for entry in reading.read(config, version).entries.values():
        block, name = value_at(converted, entry.path.parent), entry.path.name
        if entry.outcome is reading.Outcome.CONVERTED and is_block(block) and name in block:
            block[name] = entry.value
    return meaning(converted, version)

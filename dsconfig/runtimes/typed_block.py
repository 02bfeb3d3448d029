"""One block as DeepSpeed's model of it has it: every field by the model's names, none missing."""

from collections.abc import Mapping
from typing import Any

from dsconfig.runtimes.effective import overlaps
from dsconfig.runtimes.reading import Reading, read
from dsconfig.schema import former
from dsconfig.schema.catalogue import block_at, field_of
from dsconfig.schema.version import NEWEST, Version


def block_values(name: str, values: Mapping[str, Any], version: Version = NEWEST) -> dict[str, Any]:
    """Return what the fields of a top-level block come to; a block in it is a dict.

    Values are converted as DeepSpeed converts them, former names count, and what is not set has
    the default of the release. Nothing is judged.
    """
    config = former.renewed({name: dict(values)})
    (name,) = config
    found = _fields((name,), read(config, version), version)
    if "overlap_comm" in found:  # the one default that another field settles
        found["overlap_comm"] = overlaps(found["overlap_comm"], found["stage"])
    return found


def _fields(path: tuple[str, ...], reading: Reading, version: Version) -> dict[str, Any]:
    block = block_at(path)
    if block is None:
        raise ValueError(f"{'.'.join(path)} is no block of a ds_config")
    given, found = reading.values.get(path, {}), dict[str, Any]()
    for name in block.owner.model_fields:
        key = field_of(block, name)
        if key is None or not key.read_at(version):
            continue
        value = given.get(key.model_name, key.default_at(version))
        is_block = key.is_block and isinstance(value, dict)
        found[key.model_name] = _fields((*path, name), reading, version) if is_block else value
    return found

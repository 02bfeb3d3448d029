"""What DeepSpeed holds of a block, or of all: every field by its model's names, none missing."""

from collections.abc import Mapping
from typing import Any

from dsconfig.runtimes.read_config import overlaps
from dsconfig.runtimes.reading import Reading, read
from dsconfig.runtimes.settings import Settings
from dsconfig.schema import former_names
from dsconfig.schema.catalogue import block_at, field_of, key
from dsconfig.schema.config import DSConfig
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source.pointer import is_block


def block_values(name: str, values: Mapping[str, Any], version: Version = NEWEST) -> dict[str, Any]:
    """Return what the fields of a top-level block come to; a block in it is a dict.

    Values are converted as DeepSpeed converts them, former names count, and what is not set has
    the default of the release. Nothing is judged.
    """
    config = former_names.with_current_names({name: dict(values)})
    ((name, content),) = config.items()
    found = _fields((name,), content, read(config, version), version)
    if "overlap_comm" in found:  # the one default that another field settles
        found["overlap_comm"] = overlaps(found["overlap_comm"], found["stage"])
    return found


def config_values(config: Mapping[str, Any], version: Version = NEWEST) -> dict[str, Any]:
    """Return what every top-level key that the release reads comes to, by name.

    A block is a dict as ``block_values`` has it, whether the config has it or not. Nothing is
    judged; raises ValueError with the key where a value is still "auto".
    """
    written = former_names.with_current_names(config)
    settings, found = Settings(written, version), dict[str, Any]()
    for name in DSConfig.model_fields:
        known = key(name)
        if known is None or not known.read_at(version):
            continue
        content = written.get(name)
        found[name] = (
            block_values(name, content if is_block(content) else {}, version)
            if known.is_block
            else settings.value(name)
        )
    return found


def _fields(
    path: tuple[str, ...], content: Mapping[str, Any], reading: Reading, version: Version
) -> dict[str, Any]:
    block = block_at(path)
    if block is None:
        raise ValueError(f"{'.'.join(path)} is no block of a ds_config")
    given, found = reading.values.get(path), dict[str, Any]()
    if given is None:  # no model of DeepSpeed's converts it
        known = {name: field_of(block, name) for name in content}
        given = {each.model_name: content[name] for name, each in known.items() if each}
    for name in block.owner.model_fields:
        field = field_of(block, name)
        if field is None or not field.read_at(version):
            continue
        value = given.get(field.model_name, field.default_at(version))
        inside = field.is_block and is_block(value) and block_at((*path, name)) is not None
        found[field.model_name] = (
            _fields((*path, name), value, reading, version) if inside else value
        )
    return found

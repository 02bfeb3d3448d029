"""All fields of a block or a config as DeepSpeed's models store them, with defaults."""

from collections.abc import Mapping
from typing import Any

from dsconfig.facts import Facts
from dsconfig.runtimes.config_view import ConfigView, overlaps
from dsconfig.schema import former_names
from dsconfig.schema.catalogue import block_at, field_of, key
from dsconfig.schema.config import DSConfig
from dsconfig.schema.paths import ROOT, KeyPath
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source.pointer import is_block


def block_values(name: str, values: Mapping[str, Any], version: Version = NEWEST) -> dict[str, Any]:
    """Return the fields of a top-level block; nested blocks are dicts.

    Values are converted as in DeepSpeed, former names are accepted, and unset fields have the
    default of the release. Nothing is validated.
    """
    config = former_names.with_current_names({name: dict(values)})
    ((name, content),) = config.items()
    found = _fields(ConfigView(config, Facts(), version), ROOT / name, content)
    if "overlap_comm" in found:  # the only default that depends on another field
        found["overlap_comm"] = overlaps(found["overlap_comm"], found["stage"])
    return found


def config_values(config: Mapping[str, Any], version: Version = NEWEST) -> dict[str, Any]:
    """Return every top-level key that the release reads, by name.

    Blocks are dicts as in ``block_values``, even if absent from the config. Nothing is validated;
    raises ValueError with the key if a value is still "auto".
    """
    written = former_names.with_current_names(config)
    view, found = ConfigView(written, Facts(), version), dict[str, Any]()
    for name in DSConfig.model_fields:
        known = key(name)
        if known is not None and known.read_at(version):
            inside = known.is_block
            filled = block_values(name, view.block(name), version) if inside else None
            found[name] = filled if inside else view.value(known.key_path)
    return found


def _fields(view: ConfigView, path: KeyPath, content: Mapping[str, Any]) -> dict[str, Any]:
    block = block_at(path)
    if block is None:
        raise ValueError(f"{path} is not a block of a ds_config")
    given, found = view.reading.values.get(path), dict[str, Any]()
    if given is None:  # not converted by a model of DeepSpeed
        known = {name: field_of(block, name) for name in content}
        given = {each.model_name: content[name] for name, each in known.items() if each}
    for name in block.owner.model_fields:
        field = field_of(block, name)
        if field is None or not field.read_at(view.version):
            continue
        value = given.get(field.model_name, field.default_at(view.version))
        inside = field.is_block and is_block(value) and block_at(path / name) is not None
        found[field.model_name] = _fields(view, path / name, value) if inside else value
    return found

"""Upgrade plans of older formats."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from dsconfig.runtimes.effective import effective
from dsconfig.schema.version import Version
from dsconfig.source.pointer import is_block

_DERIVED_FROM_MESH = ("world_size", "data_parallel")
_FIELDS_OF_2 = (
    *("runtime", "release", "nodes", "mesh", "effective", "coverage", "model", "model_elements"),
    *("units", "memory", "traffic", "step"),
)
"""Format 2.0 has the units of the only pipeline stage at top level."""


def is_older(data: Mapping[str, Any]) -> bool:
    """Return whether a plan has an older format that can be upgraded."""
    return str(data["format_version"]).partition(".")[0] == "2"


def upgraded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan of format 2 with the fields of format 3; new settings are those of its config.

    Raises ValueError if its digest shows that it was edited.
    """
    fields = {name: data.get(name) for name in _FIELDS_OF_2}
    mesh: Mapping[str, Any] = data.get("mesh") or {}
    fields["mesh"] = {name: mesh[name] for name in mesh if name not in _DERIVED_FROM_MESH}
    if digest_of(fields) != data.get("digest"):
        raise edited("digest")
    config, release = data["effective"]["config"], Version.parse(data["release"])
    return {
        **data,
        "stages": [{"units": data["units"]}],
        "effective": _completed(data["effective"], asdict(effective(config, version=release))),
    }


def _completed(values: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with the entries that only ``more`` has, at any depth."""
    return {**more, **values} | {
        name: _completed(value, more[name])
        for name, value in values.items()
        if is_block(value) and is_block(more.get(name))
    }


def digest_of(fields: Any) -> str:
    """Return the hash of the fields of a plan."""
    return sha256(canonical(fields).encode()).hexdigest()


def canonical(value: Any) -> str:
    """Return canonical JSON text."""
    return json.dumps(value, sort_keys=True)


def edited(field: str) -> ValueError:
    return ValueError(
        f"the plan was edited or created by another release of dsconfig ({field!r} differs): "
        "change the config and plan again"
    )

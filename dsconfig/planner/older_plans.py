"""Upgrade plans of older formats."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

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
    """Return a plan of format 2 with the fields of format 3.

    Raises ValueError if its digest shows that it was edited.
    """
    fields = {name: data.get(name) for name in _FIELDS_OF_2}
    mesh: Mapping[str, Any] = data.get("mesh") or {}
    fields["mesh"] = {name: mesh[name] for name in mesh if name not in _DERIVED_FROM_MESH}
    if digest_of(fields) != data.get("digest"):
        raise edited("digest")
    return {**data, "stages": [{"units": data["units"]}]}


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

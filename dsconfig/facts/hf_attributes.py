"""Attributes that transformers' config class adds to a config.json.

A class may store ``hidden_size`` under another name (``n_embd``, ``d_model``), give it a default,
or compute it. ``hf_attributes.json`` lists this, tensor-parallel plans, and
whether an expert-parallel plan divides experts, by ``model_type`` for transformers 5.23; written by
``tests/facts/record_hf_attributes.py``.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

FILE = Path(__file__).with_name("hf_attributes.json")
WIDTHS = ("hidden_size", "hidden_sizes")
TEXT = "text_config"


def attributes(config: Mapping[str, Any], model_type: object = None) -> dict[str, Any]:
    """Return the config with its widths under the names that integrations look up.

    ``model_type`` is used if the config has none.
    """
    entry, values = _table().get(str(config.get("model_type", model_type)), {}), dict(config)
    for name in WIDTHS:
        kept_as = entry.get("kept_as", {}).get(name, name)
        if kept_as in config:
            values[name] = config[kept_as]
        elif name not in config and name in entry.get("defaults", {}):
            values[name] = entry["defaults"][name]
    part = config.get(TEXT)
    text_type = entry.get(TEXT)
    if isinstance(part, Mapping):
        values[TEXT] = attributes(cast(Mapping[str, Any], part), text_type)
    elif text_type is not None:
        values[TEXT] = attributes({}, text_type)
    return values


def is_listed(model_type: object) -> bool:
    """Return whether the recorded transformers release has this type."""
    return model_type in _table()


def ties_by_default(model_type: object) -> bool:
    """Return whether a config without ``tie_word_embeddings`` ties embedding and head."""
    return bool(_table().get(str(model_type), {}).get("ties", False))


def recorded_types() -> tuple[str, ...]:
    """Return every recorded ``model_type``."""
    return tuple(_table())


def tensor_plan(model_type: object) -> Mapping[str, str]:
    """Return the ``base_model_tp_plan`` of a family: the style of each layer, by its name with
    ``*`` for the number of its block. Empty without a plan."""
    return _table().get(str(model_type), {}).get("tensor_plan", {})


def has_expert_plan(model_type: object) -> bool:
    """Return whether the ``base_model_ep_plan`` of a family divides its experts."""
    return bool(_table().get(str(model_type), {}).get("divides_experts", False))


def is_known(config: Mapping[str, Any]) -> bool:
    """Return whether the table is complete for a config, so that what it lacks is absent."""
    model_type = config.get("model_type")
    if model_type is None:
        return True
    return model_type in _table() and not _table()[model_type].get("computes_width", False)


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    return json.loads(FILE.read_text("utf-8"))

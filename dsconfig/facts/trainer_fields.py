"""Fields of transformers' TrainingArguments, current and former, read from ``trainer_fields.json``.

A test compares them with the installed transformers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from dsconfig.facts.training import OF_SCRIPTS
from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.facts import distributed_config
    from dsconfig.schema import spelling

_FIELDS = json.loads(Path(__file__).with_name("trainer_fields.json").read_text("utf-8"))

TAKEN: frozenset[str] = frozenset(_FIELDS["taken"])
"""Fields of TrainingArguments 5.23."""

FORMER: Mapping[str, str] = MappingProxyType(_FIELDS["former"])
"""Fields removed between 4.36 and 5.23, with their replacements."""

REMOVED: Mapping[str, str] = MappingProxyType(_FIELDS["removed"])
"""The first release of transformers without each of the ``FORMER`` fields."""


def unknown_arguments(arguments: Mapping[str, object]) -> dict[str, str | None]:
    """Return the names that are no TrainingArguments, now or formerly, and the closest of each."""
    checked_elsewhere = {distributed_config.MODEL_INIT, distributed_config.BLOCK}
    unknown = sorted(arguments.keys() - TAKEN - FORMER.keys() - OF_SCRIPTS - checked_elsewhere)
    return {name: _closest(name) for name in unknown}


def misspelled_arguments(arguments: Mapping[str, object]) -> dict[str, str]:
    """Return the misspelled names and what they mean; {} if an unknown one has no close name: then
    they may be fields of the script's own class."""
    meant = unknown_arguments(arguments)
    found = {name: closest for name, closest in meant.items() if closest is not None}
    return found if len(found) == len(meant) else {}


def _closest(name: str) -> str | None:
    """Return the closest TrainingArgument: one of training, unless the name mentions evaluation."""
    closest = spelling.closest(name, sorted(TAKEN))
    if closest is None:
        return None
    twin = closest.replace("eval", "train")
    is_abbreviated = set(name.split("_")) < set(closest.split("_"))
    return twin if is_abbreviated and "eval" not in name and twin in TAKEN else closest

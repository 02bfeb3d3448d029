"""Fields of transformers' TrainingArguments, current and former, read from ``trainer_fields.json``.

A test compares them with the installed transformers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_FIELDS = json.loads(Path(__file__).with_name("trainer_fields.json").read_text("utf-8"))

TAKEN: frozenset[str] = frozenset(_FIELDS["taken"])
"""Fields of TrainingArguments 5.23."""

FORMER: Mapping[str, str] = MappingProxyType(_FIELDS["former"])
"""Fields removed between 4.36 and 5.23, with their replacements."""

REMOVED: Mapping[str, str] = MappingProxyType(_FIELDS["removed"])
"""The first release of transformers without each of the ``FORMER`` fields."""

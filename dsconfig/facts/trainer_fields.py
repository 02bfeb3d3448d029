"""The fields of transformers' TrainingArguments, and those that releases before 5 had.

Both stand in ``trainer_fields.json``. A test holds them to the transformers installed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_FIELDS = json.loads(Path(__file__).with_name("trainer_fields.json").read_text("utf-8"))

TAKEN: frozenset[str] = frozenset(_FIELDS["taken"])
"""What TrainingArguments 5.23 takes."""

FORMER: Mapping[str, str] = MappingProxyType(_FIELDS["former"])
"""What a release from 4.36 on took and 5.23 does not, and what to write now."""

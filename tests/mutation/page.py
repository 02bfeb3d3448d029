"""docs/mutants.md: what the suite noticed of the sample, and why the rest may live."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mutation.sites import Mutant

ARGUED = Path(__file__).parent / "argued.json"
"""By key, why a mutant that survives is none or may live."""


def page(sample: Iterable[Mutant], verdicts: dict[str, dict[str, Any]]) -> str:
    return ""

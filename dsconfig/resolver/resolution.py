"""A config without "auto", and why each value is what it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dsconfig.report import Diagnostic, Severity
from dsconfig.runtimes.effective import Effective


class Source(StrEnum):
    CONFIG = "config"
    TRAINING = "training"
    MODEL = "model"
    HARDWARE = "hardware"
    MEMORY = "memory"
    DERIVED = "derived"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One value that was filled in or derived.

    ``rule`` is one sentence; ``inputs`` are the numbers it was computed from, by name.
    """

    pointer: str
    value: Any
    source: Source
    rule: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """``config`` has the user's key order and no "auto" (unless a diagnostic says which is left).

    ``effective`` is None when there are errors.
    """

    config: dict[str, Any]
    ledger: tuple[LedgerEntry, ...]
    diagnostics: tuple[Diagnostic, ...]
    effective: Effective | None
    runtime: str

    @property
    def ok(self) -> bool:
        return all(found.severity is not Severity.ERROR for found in self.diagnostics)

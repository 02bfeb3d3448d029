"""A config without "auto", and why each value is what it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dsconfig.report import Diagnostic, Effect, Severity
from dsconfig.runtimes.base import Source
from dsconfig.schema.version import NEWEST, Version

if TYPE_CHECKING:
    from dsconfig.runtimes.effective import Effective


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


# Without slots, so that ``effective`` can be kept once it has been derived.
@dataclass(frozen=True, kw_only=True)
class Resolution:
    """``config`` has the user's key order and no "auto" (unless a diagnostic says which is left).

    ``effective`` is None when the program would stop; it is derived when it is first asked for.
    """

    config: dict[str, Any]
    ledger: tuple[LedgerEntry, ...]
    diagnostics: tuple[Diagnostic, ...]
    runtime: str
    version: Version = NEWEST
    """The release of DeepSpeed that was asked about."""
    derive: "Callable[[], Effective | None]" = field(repr=False, compare=False)

    @cached_property
    def effective(self) -> "Effective | None":
        return None if self.refusals else self.derive()

    @property
    def ok(self) -> bool:
        """True when nothing is at error level."""
        return all(found.severity is not Severity.ERROR for found in self.diagnostics)

    @property
    def refusals(self) -> tuple[Diagnostic, ...]:
        """What stops the program; the rest is worth a word and no more."""
        return tuple(found for found in self.diagnostics if found.effect is Effect.REFUSED)

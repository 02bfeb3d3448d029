"""Result of resolving: a config without "auto", and the reason for each value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from dsconfig.report import Diagnostic, Effect, Report, Severity, writers
from dsconfig.report.sizes import counted
from dsconfig.runtimes.replay import Failure, Source
from dsconfig.schema.version import NEWEST, Version
from dsconfig.source.pointer import is_block, is_list

if TYPE_CHECKING:
    from dsconfig.runtimes.effective import Effective


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A value that was filled in or derived.

    ``rule`` is one sentence; ``inputs`` are the named values it was computed from.
    """

    pointer: str
    value: Any
    source: Source
    rule: str
    inputs: Mapping[str, Any]


# No slots, so that ``effective`` can be cached.
@dataclass(frozen=True, kw_only=True)
class Resolution:
    """``config`` keeps the user's key order and has no "auto" unless a diagnostic lists it.

    ``effective`` is computed on first access; None if the program would stop.
    """

    config: dict[str, Any]
    ledger: tuple[LedgerEntry, ...]
    diagnostics: tuple[Diagnostic, ...]
    runtime: str
    version: Version = NEWEST
    """DeepSpeed release of the target program."""
    failure: Failure | None = None
    """The first error of another program, with its exception and keys; rules report all errors."""
    failure_after: Failure | None = None
    """The first error of DeepSpeed, to which the program passes the config."""
    derive: "Callable[[], Effective | None]" = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return f"<Resolution: {self.summary}>"

    def _repr_html_(self) -> str:
        return writers.html_table(
            f"Resolution: {self.summary}",
            ("key", "value", "source", "rule"),
            ((entry.pointer, entry.value, entry.source, entry.rule) for entry in self.ledger),
        )

    @property
    def summary(self) -> str:
        """The target program, and the numbers of derived values and findings."""
        derived = counted(len(self.ledger), "derived value")
        return f"for {self.runtime}, {derived}, {Report(self.diagnostics).summary}"

    @cached_property
    def effective(self) -> "Effective | None":
        return None if self.refusals else self.derive()

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return all(found.severity is not Severity.ERROR for found in self.diagnostics)

    @property
    def refusals(self) -> tuple[Diagnostic, ...]:
        """Diagnostics that stop the program."""
        return tuple(found for found in self.diagnostics if found.effect is Effect.REFUSED)


def ledger_data(entry: LedgerEntry) -> dict[str, Any]:
    """Return an entry of the ledger as valid JSON values."""
    return {
        "pointer": entry.pointer,
        "value": finite(entry.value),
        "source": entry.source,
        "rule": entry.rule,
        "inputs": finite(dict(entry.inputs)),
    }


def finite(value: Any, infinity: str | None = "inf") -> Any:
    """Return the value with infinities and NaN replaced, which JSON cannot represent."""
    if is_block(value):
        return {key: finite(child, infinity) for key, child in value.items()}
    if is_list(value):
        return [finite(child, infinity) for child in value]
    if isinstance(value, float) and not isfinite(value):
        return infinity if value == inf else str(value)
    return value

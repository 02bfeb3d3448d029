"""Which findings count: ``--select``, ``--ignore`` and pyproject.toml."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dsconfig.commands.errors import UsageError
from dsconfig.report import Diagnostic
from dsconfig.source.findings import NEVER_IGNORED, matches


class Selection(NamedTuple):
    """Selectors as ``findings.matches`` reads them; no ``select`` selects everything."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def keeps(self, found: Diagnostic) -> bool:
        """Whether a finding counts; what could not be read at all always does."""
        if found.code in NEVER_IGNORED:
            return True
        if any(matches(selector, found) for selector in self.ignore):
            return False
        return not self.select or any(matches(selector, found) for selector in self.select)

    def also_ignoring(self, selectors: Iterable[str]) -> "Selection":
        return Selection(self.select, (*self.ignore, *selectors))


def selectors(option: str, given: Sequence[str] | None) -> tuple[str, ...]:
    """The selectors of a repeatable, comma-separated option. Raises UsageError for a bad one."""
    listed = [part.strip() for text in given or () for part in text.split(",") if part.strip()]
    for selector in listed:
        digits = selector[3:]
        is_code = (
            selector[:3].upper() == "DSC" and len(digits) <= 3 and not digits.strip("0123456789")
        )
        is_name = selector[:3].upper() != "DSC" and "-" in selector
        if not is_code and not is_name:
            hint = "give a code like DSC412, the start of one like DSC4, or a rule's name"
            raise UsageError(f"{option} {selector}: {hint}")
    return tuple(listed)

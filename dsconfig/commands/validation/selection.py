"""Which findings count: ``--select``, ``--ignore``, pyproject.toml, and the baseline."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dsconfig.commands.errors import UsageError
from dsconfig.report import Diagnostic
from dsconfig.source.ignores import NEVER_IGNORED, matches

SELECTOR = re.compile(r"(?i:DSC)\d{0,3}|(?!(?i:DSC)\d)[a-zA-Z]\w*(?:-\w+)+")
"""A code, the start of one, or a kebab name."""
Identity = tuple[str, str, str]
"""File, code and JSON Pointer: what a finding is recognised by in another run."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selectors as ``ignores.matches`` reads them; no ``select`` selects everything."""

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


class Baseline:
    """The findings of an earlier run, which do not count again."""

    def __init__(self, known: Counter[Identity]) -> None:
        self.known = known

    @classmethod
    def load(cls, path: Path) -> "Baseline":
        """Read a report in the json format. Raises UsageError when the file is none."""
        remedy = "make one with `dsconfig validate --output-format json --exit-zero ... > FILE`"
        try:
            data: Any = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise UsageError(f"--baseline {path}: {error.strerror}; {remedy}") from None
        except ValueError:
            raise UsageError(f"--baseline {path} is not JSON; {remedy}") from None
        try:
            known = Counter(
                (_portable(file["file"]), found["code"], found["pointer"])
                for file in cast("list[Any]", data["files"])
                for found in file["diagnostics"]
            )
        except (KeyError, TypeError):
            raise UsageError(f"--baseline {path} is no report of dsconfig; {remedy}") from None
        return cls(known)

    def new(self, file: str, found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
        """The findings that the earlier run did not have."""
        left = self.known.copy()
        fresh: list[Diagnostic] = []
        for diagnostic in found:
            identity = (_portable(file), diagnostic.code, diagnostic.pointer)
            if left[identity] > 0:
                left[identity] -= 1
            else:
                fresh.append(diagnostic)
        return tuple(fresh)


def _portable(file: str) -> str:
    """The same name for the same file, however the command line spelt it."""
    return Path(os.path.normpath(file)).as_posix()

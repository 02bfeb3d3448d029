"""``--baseline``: suppress the findings of an earlier run."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from dsconfig import os_errors
from dsconfig.project.errors import UsageError
from dsconfig.report import Diagnostic
from dsconfig.source.findings import current

Identity = tuple[str, str, str]
"""File, code and JSON Pointer, which identify a finding across runs."""


class Baseline:
    """Findings of an earlier run, and the number found again."""

    def __init__(self, known: Counter[Identity]) -> None:
        self.known = known
        self._suppressed: dict[str, int] = {}

    @property
    def suppressed(self) -> int:
        """The number of findings left out, over all files."""
        return sum(self._suppressed.values())

    def new(self, file: str, findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
        """Return the findings for a file that are not in the baseline."""
        found: Counter[Identity] = Counter()
        fresh: list[Diagnostic] = []
        for diagnostic in findings:
            identity = _identity(file, diagnostic)
            if found[identity] < self.known[identity]:
                found[identity] += 1
            else:
                fresh.append(diagnostic)
        self._suppressed[file] = found.total()
        return tuple(fresh)

    def knows(self, file: str, finding: Diagnostic) -> bool:
        """Return whether a finding for a file is in the baseline, without counting it."""
        return self.known[_identity(file, finding)] > 0


def load(path: Path) -> Baseline:
    """Load the findings of a JSON report. Raises UsageError for any other file."""
    help = "create one with `dsconfig validate --output-format json --exit-zero ... > FILE`"
    try:
        data: Any = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"--baseline: {path}: {os_errors.reason(error)}; {help}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"--baseline: {path}: not valid JSON; {help}") from None
    try:
        return Baseline(
            Counter(
                (_portable(file["file"]), current(finding["code"]), finding["pointer"])
                for file in cast("list[Any]", data["files"])
                for finding in file["diagnostics"]
            )
        )
    except (KeyError, TypeError):
        raise UsageError(f"--baseline: {path}: not a report of dsconfig; {help}") from None


def _identity(file: str, finding: Diagnostic) -> Identity:
    return (_portable(finding.file or file), finding.code, finding.pointer)


def _portable(file: str) -> str:
    """Return a normalized file name, independent of how the command line spells it."""
    return Path(os.path.normpath(file)).as_posix()

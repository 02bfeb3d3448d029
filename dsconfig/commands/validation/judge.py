"""One target to a report: read, override, validate, select."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

import dsconfig
from dsconfig.commands.errors import usage
from dsconfig.commands.validation.selection import Selection
from dsconfig.commands.validation.settings import settings_for
from dsconfig.commands.validation.targets import STDIN, Target
from dsconfig.report import FileReport, Report
from dsconfig.source import Document, read, with_overrides

if TYPE_CHECKING:
    from dsconfig.commands.validation.baseline import Baseline
    from dsconfig.facts import Facts


class Judge(NamedTuple):
    """What every file of one run is held against."""

    facts: "Facts | None" = None
    runtime: str | None = None
    version: str | None = None
    overrides: Sequence[str] = ()
    selection: Selection = Selection()
    baseline: Optional["Baseline"] = None

    def for_file(self, file: str) -> "Judge":
        """With what the project of a file asks for; the command line wins."""
        project = settings_for(file)
        own = Selection(
            self.selection.select or project.select, (*self.selection.ignore, *project.ignore)
        )
        return self._replace(
            runtime=self.runtime or project.runtime,
            version=self.version or project.version,
            selection=own.also_ignoring(project.ignored_in(file)),
        )

    def read(self, target: Target) -> Document:
        """The document of a target, overrides applied. Raises UsageError for a bad override."""
        name = target.name if target.source == STDIN else None
        document = read(target.source, name=name)
        if document.is_unreadable:
            return document
        with usage():
            return with_overrides(document, self.overrides)

    def judge(self, document: Document) -> Report:
        """The findings that count. Raises UsageError for an unknown runtime or version."""
        with usage():
            report = dsconfig.validate(
                document, self.facts, runtime=self.runtime, version=self.version
            )
        kept = tuple(found for found in report.diagnostics if self.selection.keeps(found))
        if self.baseline is not None:
            kept = self.baseline.new(document.name, kept)
        return Report(kept)

    def report(self, document: Document) -> FileReport:
        return FileReport(document.name, document.text, self.judge(document))

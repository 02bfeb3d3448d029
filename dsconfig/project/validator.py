"""Check one config: read, apply overrides, infer the target program, validate, select."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from dsconfig import examination, opening
from dsconfig.applicable_fixes import ABOUT_THE_SCRIPT
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import beside, inference
from dsconfig.project.errors import UsageError, usage
from dsconfig.project.settings import ProjectSettings, settings_for
from dsconfig.project.targets import STDIN, Target
from dsconfig.report import Diagnostic, FileReport, FileTarget, Report
from dsconfig.source import Document, with_overrides
from dsconfig.source.findings import NEVER_IGNORED, current, matches

with lazy_imports():
    from dsconfig.checks import registry
    from dsconfig.project import baseline as baselines
    from dsconfig.runtimes.base import runtime_of
    from dsconfig.schema import spelling
    from dsconfig.source import ignores

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.project.neighbours import Neighbours
    from dsconfig.runtimes.base import Runtime


class Selection(NamedTuple):
    """Selectors in the syntax of ``findings.matches``; an empty ``select`` selects all."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def keeps(self, finding: Diagnostic) -> bool:
        """Return whether a finding is reported; unreadable input always is."""
        if finding.code in NEVER_IGNORED:
            return True
        if any(matches(selector, finding) for selector in self.ignore):
            return False
        return not self.select or any(matches(selector, finding) for selector in self.select)


def selectors(option: str, texts: Sequence[str] | None) -> tuple[str, ...]:
    """Return the selectors of a repeatable, comma-separated option. Raises UsageError."""
    listed = [part.strip() for text in texts or () for part in text.split(",") if part.strip()]
    for selector in listed:
        digits = selector[3:]
        is_code = (
            selector[:3].upper() == "DSC" and len(digits) <= 3 and not digits.strip("0123456789")
        )
        is_name = selector[:3].upper() != "DSC" and "-" in selector
        if not is_code and not is_name:
            hint = "specify a code (DSC412), a prefix (DSC4) or the name of a rule"
            raise UsageError(f"{option} {selector}: {hint}")
        if not any(_matches_rule(selector, code, name) for code, name in _rule_names()):
            raise UsageError(f"{option} {selector}: unknown rule{_nearest(selector)}")
    return tuple(listed)


@cache
def _rule_names() -> tuple[tuple[str, str], ...]:
    return tuple((code, rule.name) for code, rule in registry.rules().items())


def _matches_rule(selector: str, code: str, name: str) -> bool:
    wanted = current(selector)
    return code.startswith(wanted) or name == wanted


def _nearest(selector: str) -> str:
    near = spelling.closest(selector, (name for _, name in _rule_names()))
    return f'; did you mean "{near}"?' if near else ""


def _check_selectors(project: ProjectSettings) -> None:
    """Raise UsageError for an unknown rule in the project settings."""
    named = {"select": project.select, "ignore": project.ignore, **project.per_file_ignores}
    for name, listed in named.items():
        if listed:
            _check_named(f"{project.file}: {name}:", listed)


@cache
def _check_named(name: str, listed: tuple[str, ...]) -> None:
    selectors(name, listed)


class Validator(NamedTuple):
    """Settings for checking the files of one run."""

    facts: "Facts | None" = None
    runtime: str | None = None
    version: str | None = None
    project: str = ""
    """File that sets the runtime, if the command line does not."""
    overrides: Sequence[str] = ()
    selection: Selection = Selection()
    baseline: "baselines.Baseline | None" = None
    program: inference.TargetProgram | None = None
    """Target program of the current file; None for all programs."""
    neighbours: "Neighbours | None" = None
    """Shared by all files of a command; None: read for each file."""

    def for_file(self, file: str) -> "Validator":
        """Return a validator with the project settings of a file; the command line wins."""
        project = settings_for(file)
        _check_selectors(project)
        ignored = (*self.selection.ignore, *project.ignore, *project.ignored_in(file))
        return self._replace(
            runtime=self.runtime or project.runtime,
            project=project.file if not self.runtime else "",
            version=self.version or project.version,
            selection=Selection(self.selection.select or project.select, ignored),
        )

    def read(self, target: Target) -> Document:
        """Read a target and apply overrides. Raises UsageError for an invalid override."""
        name = target.name if target.source == STDIN else None
        document = opening.read(target.source, name=name)
        if document.is_unreadable:
            return document
        document = opening.used(document, self.facts)
        with usage():
            return with_overrides(document, self.overrides)

    def with_program(self, document: Document, source: str = "") -> "Validator":
        """Return a validator with the inferred target program. Raises UsageError."""
        if self.runtime == inference.EVERY:
            return self
        program = inference.target_program(
            self.runtime,
            self.version,
            document=document,
            source=source,
            facts=self.facts,
            project=self.project,
            neighbours=self.neighbours,
        )
        facts, _ = beside.with_arguments(self.facts, program, source)
        return self._replace(program=program, facts=facts)

    def validate(self, document: Document) -> Report:
        """Return the selected findings. Raises UsageError for an unknown release."""
        runtime = self.program.runtime if self.program else None
        with usage():
            findings = list(self._findings(document, runtime))
        if runtime is not None and document.may_ignore:
            # An ignore may be unused for one program only, so all programs are checked.
            findings += [
                finding
                for finding in self._findings(document, None)
                if finding.code == ignores.UNUSED
            ]
        if self.program is not None and self.program.inferred_from:
            findings = [finding for finding in findings if finding.code not in ABOUT_THE_SCRIPT]
        kept = tuple(finding for finding in findings if self.selection.keeps(finding))
        if self.baseline is not None:
            kept = self.baseline.new(document.name, kept)
        return Report(kept)

    def _findings(self, document: Document, runtime: "Runtime | None") -> tuple[Diagnostic, ...]:
        release = runtime.version if runtime else inference.release_of(self.version)
        return examination.findings(document, self.facts, runtime, release).diagnostics

    def report(self, document: Document, report: Report | None = None) -> FileReport:
        """Return the findings for a document, or the given ones, for the renderers."""
        if self.program is None:
            target = ALL_PROGRAMS._replace(ranks=inference.ranks_fixed(document.value, self.facts))
        else:
            target = self.program.target(document.value, self.facts)
        report = self.validate(document) if report is None else report
        return FileReport(document.name, document.text, report, target)

    def check(self, target: Target) -> FileReport:
        """Return the report for one file. Raises UsageError for invalid project settings."""
        own = self.for_file(target.name)
        document = own.read(target)
        return own.with_program(document, target.source).report(document)

    def dsengine_errors(self, document: Document) -> list[str]:
        """Return the pointers of selected errors for dsengine in a file of another program."""
        engine = runtime_of("dsengine", inference.release_of(self.version))
        found = self._findings(document, engine)
        return [
            finding.pointer
            for finding in Report(found).refusals
            if self._is_selected(document, finding)
        ]

    def _is_selected(self, document: Document, finding: Diagnostic) -> bool:
        """Return whether a finding is selected and not in the baseline."""
        known = self.baseline is not None and self.baseline.knows(document.name, finding)
        return self.selection.keeps(finding) and not known


ALL_PROGRAMS = FileTarget(inference.EVERY, "", described="target: all programs")

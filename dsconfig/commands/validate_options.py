"""Options of ``validate``, by purpose."""

from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.validator import Selection, selectors

with lazy_imports():
    from dsconfig.project import checking

_about_findings = partial(typer.Option, rich_help_panel="Findings")
_about_fixes = partial(typer.Option, rich_help_panel="Fixes")


class FindingOptions(NamedTuple):
    """Which findings are reported."""

    select: Annotated[
        list[str] | None,
        _about_findings(metavar="CODES", help="Report only these rules (DSC412, DSC4 or a name)."),
    ] = None
    ignore: Annotated[
        list[str] | None, _about_findings(metavar="CODES", help="Do not report these rules.")
    ] = None
    baseline: Annotated[
        Path | None,
        _about_findings(
            metavar="FILE", help="JSON report of an earlier run; report only new findings."
        ),
    ] = None

    statistics: Annotated[
        bool, _about_findings("--statistics", help="Print how often each rule reports something.")
    ] = False

    def selection(self) -> Selection:
        """Return the selected rules. Raises UsageError for an unknown one."""
        return Selection(selectors("--select", self.select), selectors("--ignore", self.ignore))


class FixOptions(NamedTuple):
    """Whether files are changed."""

    fix: Annotated[bool, _about_fixes("--fix", help="Apply safe fixes and keep the layout.")] = (
        False
    )
    unsafe_fixes: Annotated[
        bool, _about_fixes("--unsafe-fixes", help="Also apply fixes that may change training.")
    ] = False
    diff: Annotated[bool, _about_fixes("--diff", help="Print the changes without writing.")] = False

    @property
    def any(self) -> bool:
        """Whether fixes are applied or shown."""
        return self.fix or self.unsafe_fixes or self.diff


class RunOptions(NamedTuple):
    """Exit code, input and processes."""

    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit with 0 even if there are findings.")
    ] = False
    error_on_warning: Annotated[
        bool, typer.Option("--error-on-warning", help="Exit with 1 for warnings as well.")
    ] = False
    skip_non_configs: Annotated[
        bool,
        typer.Option(
            "--skip-non-configs", help="Skip files that contain no config (for pre-commit)."
        ),
    ] = False
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Check again whenever a file changes, until Ctrl-C."),
    ] = False
    show_settings: Annotated[
        bool,
        typer.Option(
            "--show-settings",
            help="Print the settings of the first file with their origin, and check nothing.",
        ),
    ] = False
    stdin_filename: Annotated[str | None, typer.Option(help="File name to print for stdin.")] = None
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Processes to check files with, ignored with --fix or --diff (default: 1, or all "
            f"cores from {checking.SEQUENTIAL_BELOW} files on).",
        ),
    ] = None

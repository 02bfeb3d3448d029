"""Output formats for findings, one module each, imported on first use."""

import sys
from collections.abc import Sequence
from importlib import import_module

from dsconfig.report.render.terminal import Look, look_of
from dsconfig.report.report import FileReport

__all__ = ["FORMATS", "FOR_PEOPLE", "Look", "render"]

FORMATS = {
    "full": "dsconfig.report.render.full",
    "concise": "dsconfig.report.render.concise",
    "json": "dsconfig.report.render.as_json",
    "github": "dsconfig.report.render.github",
    "gitlab": "dsconfig.report.render.gitlab",
    "sarif": "dsconfig.report.render.sarif",
    "junit": "dsconfig.report.render.junit",
}
"""Module of each format, which has a ``render`` function."""
FOR_PEOPLE = ("full", "concise")


def render(
    name: str,
    files: Sequence[FileReport],
    look: Look | None = None,
    *,
    error_on_warning: bool = False,
) -> str:
    """Render the findings in a format; default ``look``: that of standard output.

    ``error_on_warning``: whether JUnit counts warnings as failures.
    Raises ValueError for an unknown format.
    """
    if name not in FORMATS:
        raise ValueError(f"{name!r} is not an output format; choose one of {', '.join(FORMATS)}")
    by_file = [report for file in files for report in file.by_file()]
    more = {"error_on_warning": True} if error_on_warning and name == "junit" else {}
    shown: str = import_module(FORMATS[name]).render(by_file, look or look_of(sys.stdout), **more)
    return shown

"""How findings are shown: one file per format, chosen by name, imported when chosen."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from dsconfig.report.report import FileReport


class Look(NamedTuple):
    """What the terminal can do. Machine formats take no notice of it."""

    color: bool = False
    width: int = 100
    """Columns; the full format wraps to it."""


Renderer = Callable[[Sequence[FileReport], Look], str]

FORMATS = {
    "full": "dsconfig.report.render.full",
    "concise": "dsconfig.report.render.concise",
    "json": "dsconfig.report.render.as_json",
    "github": "dsconfig.report.render.github",
    "sarif": "dsconfig.report.render.sarif",
    "junit": "dsconfig.report.render.junit",
}
"""Where each format lives; its ``render`` does the work."""
FOR_PEOPLE = ("full", "concise")


def renderer(name: str) -> Renderer:
    """The renderer of a format. Raises ValueError for an unknown name."""
    if name not in FORMATS:
        raise ValueError(f"{name!r} is not an output format; choose one of {', '.join(FORMATS)}")
    render: Renderer = import_module(FORMATS[name]).render
    return render


def render(name: str, files: Sequence[FileReport], look: Look | None = None) -> str:
    """The findings in a format; without ``look``, as standard output can show them.

    Raises ValueError for an unknown format.
    """
    if look is None:
        import sys

        from dsconfig.report.render.color import look_of

        look = look_of(sys.stdout)
    return renderer(name)(files, look)

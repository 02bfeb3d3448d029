"""Colour, where it is wanted: NO_COLOR and FORCE_COLOR count when they are not empty."""

import os
import shutil
from typing import TextIO

from dsconfig.report.diagnostic import Severity
from dsconfig.report.render import Look

CODES = {
    Severity.ERROR: "1;31",
    Severity.WARNING: "1;33",
    Severity.INFO: "1;36",
    "frame": "34",
    "strong": "1",
    "faint": "2",
    "added": "32",
    "removed": "31",
}
PIPED_WIDTH = 100


def paint(text: str, style: str, look: Look) -> str:
    """The text in a severity's colour, or in a named style."""
    return f"\x1b[{CODES[style]}m{text}\x1b[0m" if look.color and text else text


def look_of(stream: TextIO) -> Look:
    """What the program at the other end of a stream can show."""
    terminal = stream.isatty()
    width = shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
    return Look(color=_wants_color(terminal), width=max(width, 40))


def _wants_color(terminal: bool) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return terminal and os.environ.get("TERM") != "dumb"

"""Terminal capabilities. NO_COLOR and FORCE_COLOR apply if not empty."""

import os
import shutil
from typing import NamedTuple, TextIO

from dsconfig.report.diagnostic import Severity


class Look(NamedTuple):
    """Terminal capabilities; ignored by machine-readable formats."""

    color: bool = False
    width: int = 100
    """Columns to which the full format wraps."""


CODES = {
    Severity.ERROR: "1;31",
    Severity.WARNING: "1;33",
    Severity.INFO: "1;36",
    "frame": "34",
    "strong": "1",
    "faint": "2",
    "added": "32",
    "removed": "31",
    "good": "32",
    "doubtful": "33",
}
PIPED_WIDTH = 100


def paint(text: str, style: str, look: Look) -> str:
    """Return the text in the color of a severity or a named style."""
    return f"\x1b[{CODES[style]}m{text}\x1b[0m" if look.color and text else text


def look_of(stream: TextIO) -> Look:
    """Return the capabilities of a stream."""
    terminal = stream.isatty()
    width = shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
    return Look(color=_wants_color(terminal), width=max(width, 40))


def _wants_color(terminal: bool) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return terminal and os.environ.get("TERM") != "dumb"

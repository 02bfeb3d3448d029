"""What a terminal can show, and what may be printed on it.

NO_COLOR and FORCE_COLOR count when they are not empty. No control character of a config reaches
the terminal.
"""

import os
import re
import shutil
from functools import cache
from typing import NamedTuple, TextIO

from dsconfig.report.diagnostic import Severity


class Look(NamedTuple):
    """What the terminal can do. Machine formats take no notice of it."""

    color: bool = False
    width: int = 100
    """Columns; the full format wraps to it."""


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


def visible(text: str) -> str:
    """The text, lines kept, with all other control characters written as escapes."""
    return "\n".join(map(one_line, text.split("\n")))


def one_line(text: str) -> str:
    """The text on one line, with control characters written as escapes."""
    return text if text.isprintable() else _control().sub(_escape, text)


def is_control(character: str) -> bool:
    """Whether a terminal would obey a character, or not be able to show it."""
    return not character.isprintable() and _control().match(character) is not None


@cache
def _control() -> re.Pattern[str]:
    """Compiled when a text needs it: few do, and the compiler of patterns is slow."""
    return re.compile(
        r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
    )


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(
        code, f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    )

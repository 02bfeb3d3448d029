"""Terminal capabilities and escaping.

NO_COLOR and FORCE_COLOR apply if not empty. Control characters in a config are never printed.
"""

import os
import re
import shutil
from functools import cache
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


def visible(text: str) -> str:
    """Escape control characters except newlines."""
    return "\n".join(map(one_line, text.split("\n")))


def one_line(text: str) -> str:
    """Escape all control characters, so that the text stays on one line."""
    return text if text.isprintable() else _control().sub(_escape, text)


def is_control(character: str) -> bool:
    """Return whether a character is a control character or cannot be displayed."""
    return not character.isprintable() and _control().match(character) is not None


@cache
def _control() -> re.Pattern[str]:
    """Compile the pattern on first use, because most texts do not need it."""
    return re.compile(
        r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
    )


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(
        code, f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    )

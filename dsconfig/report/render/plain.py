"""Text that is safe to print: no control character of a config reaches the terminal."""

import re
from functools import cache


def one_line(text: str) -> str:
    """The text on one line, with control characters written as escapes."""
    return text if text.isprintable() else _control().sub(_escape, text)


def is_control(character: str) -> bool:
    """Whether a terminal would obey a character, or not be able to show it."""
    return not character.isprintable() and _control().match(character) is not None


@cache
def _control() -> re.Pattern[str]:
    """Compiled when a text needs it: few do, and the compiler of patterns is slow."""
    return re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(
        code, f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    )

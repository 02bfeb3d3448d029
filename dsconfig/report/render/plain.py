"""Text that is safe to print: no control character of a config reaches the terminal."""

import re

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    """The text on one line, with control characters written as escapes."""
    return CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(
        code, f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    )

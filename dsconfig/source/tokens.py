r"""The lexical rules of HJSON, as the ``hjson`` package applies them.

Pure functions over (text, offset). Each mirrors a measured habit of ``hjson`` 3.1.0, odd
ones included (Unicode digits, ``\u`` escapes read by ``int``), because DeepSpeed's verdict
on a file is hjson's. A :class:`TokenError` carries where reading can go on.
"""

import re
from typing import Any

PUNCTUATION = "{}[],:"

SPACE = re.compile(r"[ \t\n\r]*")
LINE_END = re.compile(r"[\r\n]|\Z")
PLAIN_STRING = re.compile(r'"([^"\\\x00-\x1f]*)"')
STRING_PART = re.compile(r"""[^"'\\\x00-\x1f]*""")
TOKEN_END = re.compile(r"[\r\n,}\]#]|/[/*]|\Z")
NUMBER = re.compile(r"(-?(?:0|[1-9]\d*))(\.\d+)?([eE][-+]?\d+)?[\t ]*")
BARE_KEY = re.compile(r"[^ \t\n\r{}\[\],:]+")

ESCAPES = {
    '"': '"', "'": "'", "\\": "\\", "/": "/",
    "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
WORDS = {"null": None, "true": True, "false": False}

LARGEST_INTEGRAL = 1e10
"""hjson turns a number with a fraction or an exponent into an int below this, if integral."""


class TokenError(Exception):
    """A token that hjson refuses. ``resume`` and ``value`` let the reader go on.

    ``crash`` is True where hjson leaves with an exception other than its own, which ends
    its attempts to read the text in another way.
    """

    def __init__(
        self,
        message: str,
        start: int,
        end: int,
        *,
        resume: int,
        value: Any = None,
        crash: bool = False,
    ) -> None:
        super().__init__(message)
        self.message, self.start, self.end = message, start, end
        self.resume, self.value, self.crash = resume, value, crash


def end_of_line(text: str, at: int) -> int:
    """The offset of the line end at or behind ``at``, or of the end of the text."""
    found = LINE_END.search(text, at)
    return found.start() if found else len(text)


def after_space(text: str, at: int) -> int:
    """The offset of the next character that is no blank and no line end."""
    found = SPACE.match(text, at)
    return found.end() if found else at


def skip(text: str, at: int) -> int:
    """The offset of the next character that is neither space nor comment."""
    while True:
        at = after_space(text, at)
        two = text[at : at + 2]
        if two[:1] == "#" or two == "//":
            at = end_of_line(text, at)
        elif two == "/*":
            close = text.find("*/", at + 2)
            if close < 0:
                message = "this comment is never closed"
                raise TokenError(message, at, at + 2, resume=len(text), crash=True)
            at = close + 2
        else:
            return at


def quoted(text: str, at: int) -> tuple[str, int]:
    """A string in single or double quotes that opens at ``at``: (value, offset behind it)."""
    plain = PLAIN_STRING.match(text, at)
    if plain:
        return plain[1], plain.end()
    quote = text[at]
    parts: list[str] = []
    problem: TokenError | None = None
    here = at + 1
    while True:
        part = STRING_PART.match(text, here)
        if part is not None:
            parts.append(part[0])
            here = part.end()
        mark = text[here : here + 1]
        if mark == quote:
            break
        if mark == "" or mark < " ":
            raise _broken_string(text, at, here, "".join(parts))
        if mark != "\\":
            parts.append(mark)
            here += 1
            continue
        try:
            value, here = _escape(text, here)
        except TokenError as error:
            problem = problem or error
            value, here = error.value, error.resume
        parts.append(value)
    if problem is not None:
        problem.value, problem.resume = "".join(parts), here + 1
        raise problem
    return "".join(parts), here + 1


def _broken_string(text: str, at: int, here: int, value: str) -> TokenError:
    """The error of a string that meets the end of the text or a control character."""
    line_end = end_of_line(text, here)
    if here == len(text) or text[here] in "\r\n":
        message = "this string is not closed on its line"
        return TokenError(message, at, here, resume=line_end, value=value.rstrip(", \t"))
    message = f"control character {text[here]!r} in a string; write it as an escape like \\t"
    close = text.find(text[at], here, line_end)
    resume = close + 1 if close >= 0 else line_end
    return TokenError(message, here, here + 1, resume=resume, value=value)


def _escape(text: str, at: int) -> tuple[str, int]:
    """One escape sequence; ``at`` is the backslash."""
    letter = text[at + 1 : at + 2]
    if letter != "u":
        if letter not in ESCAPES or not letter:
            message = f"\\{letter} is no escape sequence; write \\\\ for a backslash"
            raise TokenError(message, at, at + 1 + len(letter), resume=at + 1, value="\\")
        return ESCAPES[letter], at + 2
    first = _hexadecimal(text, at)
    if first & 0xFC00 == 0xD800 and text[at + 6 : at + 8] == "\\u" and _looks_hex(text, at + 6):
        second = _hexadecimal(text, at + 6)
        if second & 0xFC00 == 0xDC00:
            return chr(0x10000 + ((first - 0xD800) << 10 | (second - 0xDC00))), at + 12
    return chr(first), at + 6


def _looks_hex(text: str, at: int) -> bool:
    return len(text[at + 2 : at + 6]) == 4 and text[at + 3 : at + 4] not in ("x", "X")


def _hexadecimal(text: str, at: int) -> int:
    """The four digits of a Unicode escape, as generously as ``int`` reads them."""
    digits = text[at + 2 : at + 6]
    try:
        value = int(digits, 16) if _looks_hex(text, at) else None
    except ValueError:
        value = None
    if value is None or value < 0:
        message = "\\u must be followed by four hexadecimal digits"
        crash = value is not None
        raise TokenError(message, at, at + 2, resume=at + 1, value="\\", crash=crash)
    return value


def triple_quoted(text: str, at: int) -> tuple[str, int]:
    """A ``'''`` string: indentation up to that of its opening quotes is taken off each line."""
    indent = _indent_of(text, at)
    here = _skip_indent(text, at + 3, None)
    opens_at_end = here == len(text)
    if text[here : here + 1] == "\n":
        here = _skip_indent(text, here + 1, indent)
    close = text.find("'''", here)
    if close < 0 or indent is None:
        end = len(text) if close < 0 else close + 3
        message = "this ''' string is never closed"
        if indent is None:
            message = "a ''' string must not stand in a text of a single line"
        crash = indent is None or opens_at_end
        raise TokenError(message, at, at + 3, resume=end, value=text[here:end], crash=crash)
    lines = text[here:close].split("\n")
    body = [lines[0], *(line[_skip_indent(line, 0, indent) :] for line in lines[1:])]
    value = "\n".join(body).replace("\r", "")
    return value.removesuffix("\n"), close + 3


def _indent_of(text: str, at: int) -> int | None:
    """The column of the opening quotes, as hjson counts it.

    It looks backwards for a line end and, from the first line, goes on at the end of the
    text; a text without any line end makes it fail (None).
    """
    before = text.rfind("\n", 0, at)
    if before >= 0:
        return at - 1 - before
    last = text.rfind("\n")
    return None if last < 0 else at - 1 - last + len(text)


def _skip_indent(text: str, at: int, most: int | None) -> int:
    end = len(text) if most is None else min(len(text), at + most)
    while at < end and text[at] in " \t\r":
        at += 1
    return at


def bare(text: str, at: int) -> tuple[Any, int, bool]:
    """A value without quotes: (value, offset behind it, True for text).

    A word or a number ends at punctuation or a comment; anything else is text that takes
    everything up to the end of the line. Raises TokenError for a number Python cannot hold.
    """
    stop = TOKEN_END.search(text, at)
    end = stop.start() if stop else len(text)
    first = text[at]
    if first in "ntf":
        word = text[at:end].strip()
        if word in WORDS:
            return WORDS[word], end, False
    elif first == "-" or "0" <= first <= "9":
        number = NUMBER.match(text, at)
        if number is not None and number.end() == end:
            return _number(number), end, False
    end = end_of_line(text, end)
    return text[at:end].strip(), end, True


def _number(match: re.Match[str]) -> int | float:
    whole, fraction, exponent = match.groups()
    try:
        if not fraction and not exponent:
            return int(whole)
        value = float(whole + (fraction or "") + (exponent or ""))
        return int(value) if int(value) == value and abs(value) < LARGEST_INTEGRAL else value
    except (OverflowError, ValueError):
        message = "this number is too large to be read"
        start, end = match.span()
        raise TokenError(message, start, end, resume=end, value=0, crash=True) from None


def bare_key(text: str, at: int) -> tuple[str, int]:
    """A key without quotes: (key, offset of its colon). Blanks may stand before the colon."""
    end = at
    name = BARE_KEY.match(text, at)
    if name is not None:
        end = name.end()
    behind = after_space(text, end)
    follower = text[behind : behind + 1]
    key = text[at:end]
    if follower == ":":
        return key.rstrip() if behind > end else key, behind
    missing = f"':' and a value are missing after the key {key!r}"
    if follower == "":
        raise TokenError(missing, at, end, resume=len(text))
    line_end = end_of_line(text, at)
    if follower in PUNCTUATION:
        resume = behind + 1 if follower == "," else behind
        raise TokenError(missing, at, end, resume=resume)
    colon = text.find(":", end, line_end)
    if colon < 0:
        raise TokenError(missing, at, end, resume=max(end, line_end))
    key = text[at:colon].strip()
    message = f"the key {key!r} holds a space, so it needs quotes"
    raise TokenError(message, at, at + len(key), resume=colon, value=key)

r"""The lexical rules of HJSON, as the ``hjson`` package applies them.

Pure functions of (text, offset) that match the behavior of ``hjson`` 3.1.0, including its quirks
(Unicode digits, ``\u`` escapes parsed by ``int``), because DeepSpeed reads configs with it. A
:class:`TokenError` contains the offset at which parsing can resume.
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
"""hjson converts integral numbers with a fraction or exponent to int below this."""


class TokenError(Exception):
    """A token that hjson rejects. Parsing can continue at ``resume`` with ``value``.

    ``crash``: hjson raises an exception other than its own, which ends its attempts to parse the
    text in another way.
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
    """Return the offset of the line end at or after ``at``, or of the end of the text."""
    match = LINE_END.search(text, at)
    return match.start() if match else len(text)


def after_space(text: str, at: int) -> int:
    """Return the offset of the next character that is not whitespace."""
    match = SPACE.match(text, at)
    return match.end() if match else at


def skip(text: str, at: int) -> int:
    """Return the offset of the next character that is neither whitespace nor comment."""
    while True:
        at = after_space(text, at)
        two = text[at : at + 2]
        if two[:1] == "#" or two == "//":
            at = end_of_line(text, at)
        elif two == "/*":
            close = text.find("*/", at + 2)
            if close < 0:
                message = "unterminated comment"
                raise TokenError(message, at, at + 2, resume=len(text), crash=True)
            at = close + 2
        else:
            return at


def quoted(text: str, at: int) -> tuple[str, int]:
    """Parse a quoted string that starts at ``at``: (value, offset after it)."""
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
    """Return the error of a string that contains a line end or a control character."""
    line_end = end_of_line(text, here)
    if here == len(text) or text[here] in "\r\n":
        message = "unterminated string"
        return TokenError(message, at, here, resume=line_end, value=value.rstrip(", \t"))
    message = f"invalid control character {text[here]!r} in a string; use an escape such as \\t"
    close = text.find(text[at], here, line_end)
    resume = close + 1 if close >= 0 else line_end
    return TokenError(message, here, here + 1, resume=resume, value=value)


def _escape(text: str, at: int) -> tuple[str, int]:
    """Parse an escape sequence; ``at`` is the backslash."""
    letter = text[at + 1 : at + 2]
    if letter != "u":
        if letter not in ESCAPES or not letter:
            message = f"invalid escape sequence \\{letter}; write \\\\ for a backslash"
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
    """Parse the four digits of a Unicode escape, as leniently as ``int``."""
    digits = text[at + 2 : at + 6]
    try:
        value = int(digits, 16) if _looks_hex(text, at) else None
    except ValueError:
        value = None
    if value is None or value < 0:
        message = "expected four hexadecimal digits after \\u"
        crash = value is not None
        raise TokenError(message, at, at + 2, resume=at + 1, value="\\", crash=crash)
    return value


def triple_quoted(text: str, at: int) -> tuple[str, int]:
    """Parse a ``'''`` string; lines lose indentation up to that of the opening quotes."""
    indent = _indent_of(text, at)
    here = _skip_indent(text, at + 3, None)
    opens_at_end = here == len(text)
    if text[here : here + 1] == "\n":
        here = _skip_indent(text, here + 1, indent)
    close = text.find("'''", here)
    if close < 0 or indent is None:
        end = len(text) if close < 0 else close + 3
        message = "unterminated ''' string"
        if indent is None:
            message = "''' strings are not allowed in a single-line text"
        crash = indent is None or opens_at_end
        raise TokenError(message, at, at + 3, resume=end, value=text[here:end], crash=crash)
    lines = text[here:close].split("\n")
    body = [lines[0], *(line[_skip_indent(line, 0, indent) :] for line in lines[1:])]
    value = "\n".join(body).replace("\r", "")
    return value.removesuffix("\n"), close + 3


def _indent_of(text: str, at: int) -> int | None:
    """Return the column of the opening quotes, as hjson counts it.

    It searches backwards for a line end and wraps around from the first line to the end of the
    text; None if the text has no line end, where hjson fails.
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
    """Parse an unquoted value: (value, offset after it, whether it is a string).

    Keywords and numbers end at punctuation or a comment; anything else is a string up to the end of
    the line. Raises TokenError for a number that Python cannot represent.
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
    integer, fraction, exponent = match.groups()
    try:
        if not fraction and not exponent:
            return int(integer)
        value = float(integer + (fraction or "") + (exponent or ""))
        return int(value) if int(value) == value and abs(value) < LARGEST_INTEGRAL else value
    except (OverflowError, ValueError):
        message = "number too large"
        start, end = match.span()
        raise TokenError(message, start, end, resume=end, value=0, crash=True) from None


def bare_key(text: str, at: int) -> tuple[str, int]:
    """Parse an unquoted key: (key, offset of its colon), which may follow whitespace."""
    end = at
    name = BARE_KEY.match(text, at)
    if name is not None:
        end = name.end()
    behind = after_space(text, end)
    follower = text[behind : behind + 1]
    key = text[at:end]
    if follower == ":":
        return key.rstrip() if behind > end else key, behind
    missing = f"expected ':' after key {key!r}"
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
    message = f"key {key!r} contains a space; quote it"
    raise TokenError(message, at, at + len(key), resume=colon, value=key)

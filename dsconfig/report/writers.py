"""Foreign text as part of another language: one writer per language.

Keys, values, names of files, models and devices, arguments and log lines come from strangers. Each
function returns its argument so that a parser of the language reads that text and nothing else.
"""

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, cast

from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    import pprint

PLAIN_WORD = re.compile(r"[A-Za-z_](?:[\w./:-]*[\w./-])?", re.ASCII)
"""Text that no version of YAML reads as anything but a string, apart from `YAML_WORDS`."""
YAML_WORDS = frozenset(
    ("y", "yes", "n", "no", "on", "off", "true", "false", "null", "none", "nan", "inf")
)


# Terminal


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
        r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
        r"\ufeff\ufff9-\ufffb\ufffe\uffff]"
    )


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(
        code, f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    )


def harmless_in_ci(text: str) -> str:
    """Return printed lines without commands for GitHub's runner.

    It reads ``::NAME`` at the start of a line, and ``##[NAME]`` anywhere.
    """
    if "::" not in text and "##[" not in text:
        return text
    return re.sub(r"(?m)^(\s*):(?=:)", r"\1\\x3a", text).replace("##[", "#\\x23[")


def terminal_text(text: str) -> str:
    """Return lines without control codes and commands for GitHub's runner."""
    return harmless_in_ci(visible(text))


# Source files


def comment(text: str, mark: str = "#") -> str:
    """Return a comment on one line: of Python, TOML, YAML or a shell; of HJSON with ``//``."""
    return f"{mark} {one_line(text)}".rstrip()


def comment_of_value(name: str, value: object) -> str:
    """Return a comment ``NAME = VALUE``; both are JSON, the name only where it must be quoted."""
    plain = name.isprintable() and not set(name) & set("\"\\'`")
    return f"#   {name if plain else json.dumps(name)} = {json.dumps(value)}"


class _NotFinite(float):
    def __repr__(self) -> str:
        return f'float("{float(self)!r}")'


def python(value: object) -> str:
    """Return a literal of strings, numbers, booleans, None, lists, tuples and mappings.

    Raises ValueError for another value.
    """
    return pprint.pformat(_literal(value), width=90, sort_dicts=False)


def _literal(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return _NotFinite(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value)
        return {_literal(key): _literal(each) for key, each in pairs.items()}
    if isinstance(value, Sequence):
        listed = [_literal(each) for each in cast("Sequence[object]", value)]
        return tuple(listed) if isinstance(value, tuple) else listed
    raise ValueError(f"{value} has no Python literal")


def docstring(text: str) -> str:
    """Return a part of a string in triple double quotes."""
    return ascii(text)[1:-1].replace('"', '\\"')


def json_text(value: object, *, ascii_only: bool = False, **options: Any) -> str:
    """Return JSON with letters of all languages; control characters are escaped.

    ``ascii_only`` escapes other letters too; ``options`` are those of json.dumps. GitHub's runner
    would read ``##[`` as a command.
    """
    text = json.dumps(value, indent=2, ensure_ascii=ascii_only, **options)
    if not text.replace("\n", "").isprintable():
        text = _control().sub(
            lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text
        )
    return text.replace("##[", "#\\u0023[")


def toml(sections: Mapping[str, Any]) -> str:
    """Return the tables of a TOML document."""
    import tomli_w

    return tomli_w.dumps(sections)


def yaml(entries: Mapping[str, Any]) -> str:
    """Return a YAML document that versions 1.1 and 1.2 read alike: only plain words have no quotes.

    Raises ValueError for a string that is not Unicode.
    """
    import yaml as library

    class Dumper(library.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        value.encode()  # raises for a lone surrogate, which YAML cannot contain
        plain = PLAIN_WORD.fullmatch(value) and value.lower() not in YAML_WORDS
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    return library.dump(
        dict(entries), Dumper=Dumper, sort_keys=False, width=10**9, allow_unicode=True
    )


def shell(words: Iterable[str]) -> str:
    """Return a command of a POSIX shell."""
    return shlex.join(words)


def kubernetes(argument: str) -> str:
    """Return an argument of a container, in which Kubernetes expands ``$(NAME)``."""
    return argument.replace("$", "$$")


# Markdown and HTML


def code(text: str) -> str:
    """Return a code span, also for a table cell; control characters are escaped."""
    shown = one_line(text)
    if "|" in shown:  # in a table, a backslash before it means one thing to some, another to others
        entities = re.sub(r"[^\w\s]", lambda match: f"&#{ord(match[0])};", shown)
        return f"<code>{entities}</code>"
    fence = "`" * (_longest_run(shown) + 1)
    pad = " " if not shown.strip("` ") or shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def code_block(text: str) -> str:
    """Return a fenced block; control characters except newlines are escaped."""
    shown = visible(text)
    fence = "`" * max(3, _longest_run(shown) + 1)
    return f"{fence}\n{shown}\n{fence}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def markdown(text: str) -> str:
    """Return a line of text without formatting, links, HTML and mentions.

    A zero-width space follows the characters with which GitHub recognizes a mention or an address.
    """
    shown = re.sub(r"([\\`*{}\[\]<>#~&]|(?<!\w)_|_(?!\w))", r"\\\1", one_line(text))
    shown = shown.replace("|", "&#124;").replace("$", "&#36;")
    shown = re.sub(r"^(\s*\d*)([-+.)=])", r"\1\\\2", shown)  # a list
    return re.sub(r"@(?=\w)|:(?=//)|(?i:www)(?=\.)|(?<=\\)#(?=\d)", "\\g<0>\u200b", shown)


def html(text: str) -> str:
    """Return the text as content or attribute of an element."""
    from html import escape

    return escape(one_line(text))


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table for a notebook."""
    head = "".join(f"<th>{html(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{html(str(each))}</td>' for each in row)}</tr>" for row in rows
    )
    return (
        f"<table><caption>{html(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def xml(text: str, *, is_attribute: bool = False) -> str:
    """Return content of an XML element, or a quoted attribute.

    Characters that XML cannot contain become U+FFFD.
    """
    from xml.sax.saxutils import escape, quoteattr

    outside = "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    shown = re.sub(outside, "\ufffd", visible(text))
    return quoteattr(shown) if is_attribute else escape(shown)


def json_in_html(value: object) -> str:
    """Return JSON as content of a script element, in which ``</script`` and ``<!--`` are special
    even within strings."""
    return json.dumps(value).replace("<", "\\u003c")


# Other programs


def workflow_command(name: str, properties: Mapping[str, str], text: str) -> str:
    """Return a command for the runner of GitHub Actions."""
    listed = ",".join(f"{key}={_percent(value, ':,')}" for key, value in properties.items())
    return f"::{name} {listed}::{_percent(text)}"


def _percent(text: str, also: str = "") -> str:
    """Percent-encode characters that would end a command or a property, and escape others."""
    text = _control().sub(lambda found: found[0] if found[0] in "\r\n" else _escape(found), text)
    for character in f"%\r\n{also}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def sarif(text: str) -> str:
    """Return a plain text message of SARIF, in which ``[TEXT](TARGET)`` is a link.

    Brackets and backslashes elsewhere are text.
    """
    return re.sub(r"[\\[\]]", r"\\\g<0>", text) if "](" in text else text


def plot_label(text: str) -> str:
    """Return a label for matplotlib, which reads ``$`` as math and hides a label with ``_``."""
    shown = one_line(text).replace("$", "\\$")
    return f" {shown}" if shown.startswith("_") else shown

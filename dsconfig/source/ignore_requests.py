"""Where a file asks to ignore findings: its ``$dsconfig`` section and its comments."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from dsconfig.report import Diagnostic, Effect, Range, Severity
from dsconfig.source.document import Document
from dsconfig.source.ignores import SECTION, matches
from dsconfig.source.lines import LineIndex
from dsconfig.source.pointer import lookup

DIRECTIVE = re.compile(r"(?://|#|/\*)[ \t]*dsconfig:[ \t]*ignore(?:\[([^\]\r\n]*)\])?")
UNUSED = "DSC010"
MALFORMED = "DSC011"


@dataclass(slots=True)
class Ignore:
    """One selector, where it stands, and the lines it is about (None: the whole file)."""

    selector: str
    pointer: str
    place: Range | None
    lines: frozenset[int] | None = None
    used: bool = False

    def covers(self, found: Diagnostic) -> bool:
        if self.selector and not matches(self.selector, found):
            return False
        return self.lines is None or (
            found.range is not None and found.range.start.line in self.lines
        )


def requests(document: Document) -> tuple[list[Ignore], list[Diagnostic]]:
    ignores: list[Ignore] = []
    malformed: list[Diagnostic] = []
    value = document.value
    if isinstance(value, dict) and SECTION in value:
        section = cast("dict[str, Any]", value)[SECTION]
        ignores, malformed = _from_section(document, section)
    if document.text is not None and "dsconfig:" in document.text:
        ignores += _from_comments(document)
    return ignores, malformed


def _from_section(document: Document, section: Any) -> tuple[list[Ignore], list[Diagnostic]]:
    pointer = f"/{SECTION}"
    if not isinstance(section, dict):
        return [], [
            _malformed(document, pointer, f'{SECTION} must be an object like {{"ignore": []}}')
        ]
    entries = cast("dict[str, Any]", section)
    malformed = [
        _malformed(document, f"{pointer}/{key}", f"{SECTION}.{key} is not known; only ignore is")
        for key in entries
        if key != "ignore"
    ]
    listed = entries.get("ignore", [])
    if not isinstance(listed, list):
        message = f"{SECTION}.ignore must be a list of codes"
        return [], [*malformed, _malformed(document, f"{pointer}/ignore", message)]
    ignores: list[Ignore] = []
    for index, selector in enumerate(cast("list[Any]", listed)):
        here = f"{pointer}/ignore/{index}"
        if isinstance(selector, str) and selector.strip():
            ignores.append(Ignore(selector, here, document.range(here)))
        else:
            malformed.append(_malformed(document, here, "an ignored rule is a code like DSC412"))
    return ignores, malformed


def _from_comments(document: Document) -> Iterator[Ignore]:
    """The directives in comments; what stands inside a value is no comment."""
    text = document.text or ""
    lines = LineIndex(text)
    for match in DIRECTIVE.finditer(text):
        place = lines.range(*match.span())
        if _inside_value(document, place):
            continue
        line = place.start.line
        alone = not text[lines.starts[line - 1] : match.start()].strip()
        about = frozenset((line, line + 1)) if alone else frozenset((line,))
        for selector in _selectors(match[1]):
            yield Ignore(selector, "", place, about)


def _selectors(listed: str | None) -> Sequence[str]:
    """The selectors in brackets; no brackets mean every rule, the empty selector."""
    if listed is None:
        return ("",)
    return [selector.strip() for selector in listed.split(",") if selector.strip()]


def _inside_value(document: Document, place: Range) -> bool:
    """Whether a place lies in a text value or in a key, so that it is no comment."""
    for pointer, span in document.spans.items():
        in_key = span.key is not None and span.key.start <= place.start < span.key.end
        in_value = span.value.start <= place.start < span.value.end
        if in_key or (in_value and isinstance(lookup(document.value, pointer), str)):
            return True
    return False


def unused(ignore: Ignore) -> Diagnostic:
    what = (
        f"nothing here is found by {ignore.selector}"
        if ignore.selector
        else "nothing is found here"
    )
    return Diagnostic(
        code=UNUSED,
        name="unused-ignore",
        effect=Effect.STYLE,
        severity=Severity.WARNING,
        message=f"{what}, so there is nothing to ignore; the request hides later findings",
        pointer=ignore.pointer,
        range=ignore.place,
        help="delete the request",
    )


def _malformed(document: Document, pointer: str, message: str) -> Diagnostic:
    return Diagnostic(
        code=MALFORMED,
        name="malformed-ignore",
        effect=Effect.INERT,
        severity=Severity.WARNING,
        message=f"{message}; it is not heeded",
        pointer=pointer,
        range=document.range(pointer),
        help=f'write "{SECTION}": {{"ignore": ["DSC412"]}}',
    )

"""Findings a file asks not to hear of, and requests that nothing answers to.

In strict JSON: ``"$dsconfig": {"ignore": ["DSC412"]}`` at top level, for the whole file. In
HJSON also ``// dsconfig: ignore[DSC412]`` behind an entry, or alone on the line above it.
A selector is a code, the start of one (``DSC4``), or a rule's name.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dsconfig.report import Diagnostic, Effect, Range
from dsconfig.source.document import REMARKS, SECTION, Document
from dsconfig.source.findings import NEVER_IGNORED, matches
from dsconfig.source.pointer import is_block, is_list, lookup
from dsconfig.source.positions import line_index

DIRECTIVE = re.compile(r"(?://|#|/\*)[ \t]*dsconfig:[ \t]*ignore(?:\[([^\]\r\n]*)\])?")
UNUSED = "DSC010"
MALFORMED = "DSC011"


def without_ignored(
    document: Document, found: Iterable[Diagnostic], *, report_unused: bool = True
) -> tuple[Diagnostic, ...]:
    """The findings that the file does not ask to ignore, and one for each idle request."""
    ignores, malformed = requests(document)
    kept: list[Diagnostic] = []
    for diagnostic in found:
        covering = ignores.covering(diagnostic)
        if not covering or diagnostic.code in NEVER_IGNORED:
            kept.append(diagnostic)
        for ignore in covering:
            ignore.used = True
    idle = (ignore for ignore in ignores.all if report_unused and not ignore.used)
    return (*kept, *malformed, *map(unused, idle))


@dataclass(slots=True)
class Ignore:
    """One selector, where it stands, and the lines it is about (None: the whole file)."""

    selector: str
    pointer: str
    place: Range | None
    lines: frozenset[int] | None = None
    used: bool = False


class Ignores:
    """The requests of a file, by the lines they are about."""

    def __init__(self, ignores: Sequence[Ignore]) -> None:
        self.all = ignores
        self._whole_file = [ignore for ignore in ignores if ignore.lines is None]
        self._by_line: dict[int, list[Ignore]] = {}
        for ignore in ignores:
            for line in ignore.lines or ():
                self._by_line.setdefault(line, []).append(ignore)

    def covering(self, found: Diagnostic) -> list[Ignore]:
        """The requests that speak of a finding."""
        line = found.range.start.line if found.range else 0
        near = (*self._whole_file, *self._by_line.get(line, ()))
        return [each for each in near if not each.selector or matches(each.selector, found)]


def requests(document: Document) -> tuple[Ignores, list[Diagnostic]]:
    ignores: list[Ignore] = []
    malformed: list[Diagnostic] = []
    value = document.value
    if is_block(value) and SECTION in value:
        ignores, malformed = _from_section(document, value[SECTION])
    if document.text is not None and "dsconfig:" in document.text:
        ignores += _from_comments(document)
    return Ignores(ignores), malformed


def _from_section(document: Document, section: Any) -> tuple[list[Ignore], list[Diagnostic]]:
    pointer = f"/{SECTION}"
    if not is_block(section):
        return [], [
            _malformed(document, pointer, f'{SECTION} must be an object like {{"ignore": []}}')
        ]
    malformed = [
        _malformed(
            document, f"{pointer}/{key}", f"{SECTION}.{key} is not known; ignore and remarks are"
        )
        for key in section
        if key not in ("ignore", REMARKS)
    ]
    listed = section.get("ignore", [])
    if not is_list(listed):
        message = f"{SECTION}.ignore must be a list of codes"
        return [], [*malformed, _malformed(document, f"{pointer}/ignore", message)]
    ignores: list[Ignore] = []
    for index, selector in enumerate(listed):
        here = f"{pointer}/ignore/{index}"
        if isinstance(selector, str) and selector.strip():
            ignores.append(Ignore(selector, here, document.range(here)))
        else:
            malformed.append(_malformed(document, here, "an ignored rule is a code like DSC412"))
    return ignores, malformed


def _from_comments(document: Document) -> Iterator[Ignore]:
    """The directives in comments; what stands inside a value is no comment."""
    text = document.text or ""
    lines = line_index(text, document.spans)
    texts = _places_of_texts(document)
    for match in DIRECTIVE.finditer(text):
        place = lines.range(*match.span())
        before = bisect_right(texts, place.start, key=lambda text: text.start)
        if before and place.start < texts[before - 1].end:
            continue
        line = place.start.line
        alone = not text[lines.starts[line - 1] : match.start()].strip()
        about = frozenset((line, line + 1)) if alone else frozenset((line,))
        # No brackets mean every rule, the empty selector.
        listed = [""] if match[1] is None else filter(None, map(str.strip, match[1].split(",")))
        for selector in listed:
            yield Ignore(selector, "", place, about)


def _places_of_texts(document: Document) -> list[Range]:
    """Where keys and text values stand, in order; what is written in them is no comment."""
    places = [span.key for span in document.spans.values() if span.key is not None]
    places += [
        span.value
        for pointer, span in document.spans.items()
        if isinstance(lookup(document.value, pointer), str)
    ]
    return sorted(places)


def unused(ignore: Ignore) -> Diagnostic:
    by = ignore.selector
    what = f"nothing here is found by {by}" if by else "nothing is found here"
    said = f"{what}, so there is nothing to ignore; the request hides later findings"
    where, help = (ignore.pointer, ignore.place), "delete the request"
    return Diagnostic(UNUSED, "unused-ignore", Effect.INERT, said, *where, help=help)


def _malformed(document: Document, pointer: str, message: str) -> Diagnostic:
    said, help = f"{message}; it is not heeded", f'write "{SECTION}": {{"ignore": ["DSC412"]}}'
    where = pointer, document.range(pointer)
    return Diagnostic(MALFORMED, "malformed-ignore", Effect.INERT, said, *where, help=help)

"""Suppression of findings by the config itself, and suppressions that match nothing.

In strict JSON: ``"$dsconfig": {"ignore": ["DSC412"]}`` at top level, for the whole file. In
HJSON also ``// dsconfig: ignore[DSC412]`` after an entry, or on a line of its own above it.
A selector is a code, a code prefix (``DSC4``), or a rule name.
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
    document: Document, findings: Iterable[Diagnostic], *, report_unused: bool = True
) -> tuple[Diagnostic, ...]:
    """Return the findings that the file does not suppress, and one per unused suppression."""
    ignores, malformed = requests(document)
    kept: list[Diagnostic] = []
    for diagnostic in findings:
        covering = ignores.covering(diagnostic)
        if not covering or diagnostic.code in NEVER_IGNORED:
            kept.append(diagnostic)
        for ignore in covering:
            ignore.used = True
    unused_ignores = (ignore for ignore in ignores.all if report_unused and not ignore.used)
    return (*kept, *malformed, *map(unused, unused_ignores))


@dataclass(slots=True)
class Ignore:
    """A selector, its position, and the lines it applies to (None: the entire file)."""

    selector: str
    pointer: str
    place: Range | None
    lines: frozenset[int] | None = None
    used: bool = False


class Ignores:
    """Suppressions of a file, by line."""

    def __init__(self, ignores: Sequence[Ignore]) -> None:
        self.all = ignores
        self._file_level = [ignore for ignore in ignores if ignore.lines is None]
        self._by_line: dict[int, list[Ignore]] = {}
        for ignore in ignores:
            for line in ignore.lines or ():
                self._by_line.setdefault(line, []).append(ignore)

    def covering(self, finding: Diagnostic) -> list[Ignore]:
        """Return the suppressions that match a finding."""
        line = finding.range.start.line if finding.range and not finding.file else 0
        candidates = (*self._file_level, *self._by_line.get(line, ()))
        return [
            entry for entry in candidates if not entry.selector or matches(entry.selector, finding)
        ]


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
            document, f"{pointer}/{key}", f"unknown key {SECTION}.{key}; expected ignore or remarks"
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
            malformed.append(_malformed(document, here, "expected a rule code such as DSC412"))
    return ignores, malformed


def _from_comments(document: Document) -> Iterator[Ignore]:
    """Yield the directives in comments, not in strings."""
    text = document.text or ""
    lines = line_index(text, document.spans)
    strings = _string_ranges(document)
    for match in DIRECTIVE.finditer(text):
        place = lines.range(*match.span())
        before = bisect_right(strings, place.start, key=lambda string: string.start)
        if before and place.start < strings[before - 1].end:
            continue
        line = place.start.line
        alone = not text[lines.starts[line - 1] : match.start()].strip()
        lines_covered = frozenset((line, line + 1)) if alone else frozenset((line,))
        # Without brackets every rule is ignored: the empty selector.
        listed = [""] if match[1] is None else filter(None, map(str.strip, match[1].split(",")))
        for selector in listed:
            yield Ignore(selector, "", place, lines_covered)


def _string_ranges(document: Document) -> list[Range]:
    """Return the positions of keys and string values, in order."""
    places = [span.key for span in document.spans.values() if span.key is not None]
    places += [
        span.value
        for pointer, span in document.spans.items()
        if isinstance(lookup(document.value, pointer), str)
    ]
    return sorted(places)


def unused(ignore: Ignore) -> Diagnostic:
    rules = ignore.selector or "any rule"
    message = f"unused ignore: no finding of {rules} here; it would hide future findings"
    return Diagnostic(
        UNUSED,
        "unused-ignore",
        Effect.INERT,
        message,
        ignore.pointer,
        ignore.place,
        help="delete it",
    )


def _malformed(document: Document, pointer: str, message: str) -> Diagnostic:
    return Diagnostic(
        MALFORMED,
        "malformed-ignore",
        Effect.INERT,
        f"{message}; it has no effect",
        pointer,
        document.range(pointer),
        help=f'write "{SECTION}": {{"ignore": ["DSC412"]}}',
    )

"""HJSON or JSON text as a Document."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dsconfig.lazily import lazily
from dsconfig.report import Diagnostic, Fix, Range
from dsconfig.source import findings
from dsconfig.source.depth import DEEPEST
from dsconfig.source.document import Departure, Document, Format, Span
from dsconfig.source.parsed import Reading
from dsconfig.source.pointer import split
from dsconfig.source.reader import read_hjson
from dsconfig.source.spans import Spans
from dsconfig.source.strict import departure_from_json

with lazily():
    from dsconfig.source import templates

KINDS = {"list": "a list", "str": "a text", "bool": "a switch", "NoneType": "null"}
PLACEHOLDER_MARKS = ("$", "{{", "{%", "<", "%(", "@", "__")
"""What a template cannot do without, so that ordinary files pay nothing."""
NUMBER_WORDS = ("NaN", "Infinity", "-Infinity")
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def document_from_text(
    text: str, name: str, *, has_mark: bool = False, decoded: bool = False
) -> Document:
    """Read HJSON text. ``decoded``: it came out of base64, where duplicate keys pass.

    A file is read with its line ends turned into LF, as Python's ``open`` does.
    """
    source = text if decoded or "\r" not in text else text.replace("\r\n", "\n").replace("\r", "\n")
    reading = read_hjson(source, skip_mark=not has_mark)
    if reading.too_deep:
        return unreadable(name, text, too_deep())
    placeholders: frozenset[str] = frozenset()
    refused = bool(reading.problems)
    if refused or reading.bare_texts or any(mark in source for mark in PLACEHOLDER_MARKS):
        reading, placeholders = templates.filled_in(source, reading)
    spans = Spans(source, reading.places)
    found = list(_findings(reading, spans, placeholders, in_file=not decoded))
    departure = departure_from_json(f"\ufeff{source}" if has_mark else source)
    return finish(
        name,
        text,
        Format.BASE64 if decoded else Format.HJSON if departure else Format.JSON,
        reading.value,
        spans=spans,
        found=found,
        placeholders=placeholders,
        refused=refused,
        departure=departure,
        has_mark=has_mark,
        is_broken=bool(reading.problems) or reading.is_blank,
    )


def finish(
    name: str,
    text: str | None,
    form: Format,
    value: Any,
    *,
    spans: Mapping[str, Span] | None = None,
    found: Sequence[Diagnostic] = (),
    placeholders: frozenset[str] = frozenset(),
    refused: bool = False,
    departure: Departure | None = None,
    has_mark: bool = False,
    is_broken: bool = False,
) -> Document:
    """A document, with the findings that every format shares."""
    spans = spans or {}
    found = list(found)
    is_object = isinstance(value, dict)
    if not is_object:
        kind = KINDS.get(type(value).__name__, "a number")
        found.append(findings.not_an_object(kind, spans[""].value if "" in spans else None))
    if placeholders:
        found.append(findings.template(len(placeholders), refused=refused))
    return Document(
        name=name,
        value=value,
        format=form,
        text=text,
        spans=spans,
        diagnostics=tuple(found),
        is_template=bool(placeholders),
        placeholders=placeholders,
        departure=departure,
        has_mark=has_mark,
        is_broken=is_broken or not is_object,
    )


def unreadable(name: str, text: str | None, why: Diagnostic) -> Document:
    """A document that holds nothing but the reason."""
    return Document(
        name=name, value={}, format=Format.HJSON, text=text, diagnostics=(why,), is_unreadable=True
    )


def too_deep() -> Diagnostic:
    message = f"this is nested more than {DEEPEST} levels deep; Python's readers stop with an error"
    return findings.unreadable(message, "a config needs three or four levels")


def _findings(
    reading: Reading, spans: Spans, placeholders: frozenset[str], *, in_file: bool
) -> Iterator[Diagnostic]:
    told: set[str] = set(placeholders)
    bare = {pointer: start for pointer, start, _ in reading.bare_texts}
    for problem in reading.problems:
        place = spans.lines.range(problem.start, problem.end)
        told.add(problem.pointer)
        help, fix = (
            _remedy(spans, bare[problem.pointer]) if problem.pointer in bare else (None, None)
        )
        yield findings.syntax_error(problem.message, problem.pointer, place, help, fix)
    for pointer, start, end in reading.duplicates:
        place = spans.lines.range(start, end)
        key = split(pointer)[-1]
        yield findings.duplicate_key(key, pointer, place, in_file=in_file)
    if reading.is_blank:
        yield findings.empty_text("the file")
    for pointer, start, end in reading.bare_texts:
        if pointer and pointer not in told:
            yield from _bare_text(spans, pointer, start, end)


def _remedy(spans: Spans, start: int) -> tuple[str, Fix | None]:
    """What to write in place of a text without quotes that took too much."""
    text = spans.lines.text
    for word, content in PYTHON_WORDS.items():
        if (
            text.startswith(word, start)
            and text[start + len(word) : start + len(word) + 1] in ",}] \t"
        ):
            place = spans.lines.range(start, start + len(word))
            return f"write {content}, as JSON has it", findings.replacement(place, content)
    return "put quotes around the text", None


def _bare_text(spans: Spans, pointer: str, start: int, end: int) -> Iterator[Diagnostic]:
    """What is to be said about a value without quotes."""
    value = spans.lines.text[start:end].strip()
    place = spans.lines.range(start, start + len(value))
    word = value.split(",", 1)[0].rstrip(" \t}]")
    if word in NUMBER_WORDS:
        yield findings.not_a_number(pointer, place, word)
    elif any(mark in value for mark in ',}]#"'):
        # Only a single plain word surely means a text by that name.
        only_comma = value == f"{word}," and not set(word) & set("\"'{}[]:# \t\\")
        token: Range = spans.lines.range(start, start + len(word))
        content = PYTHON_WORDS.get(word) or json.dumps(word, ensure_ascii=not word.isprintable())
        fix = findings.replacement(token, content) if only_comma else None
        yield findings.swallowed_line(pointer, place, value, fix)

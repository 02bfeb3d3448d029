"""HJSON or JSON text as a Document."""

from dsconfig.report import Diagnostic, Range
from dsconfig.source import findings, templates
from dsconfig.source.document import Document, Format
from dsconfig.source.pointer import split
from dsconfig.source.reader import DEEPEST, Reading, read_hjson
from dsconfig.source.spans import Spans
from dsconfig.source.strict import departure_from_json

KINDS = {"list": "a list", "str": "a text", "bool": "a switch", "NoneType": "null"}
NUMBER_WORDS = ("NaN", "Infinity", "-Infinity")
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def document_from_text(
    text: str, name: str, *, has_mark: bool = False, decoded: bool = False
) -> Document:
    """Read HJSON text. ``decoded``: it came out of base64, where duplicate keys pass.

    A file is read with its line ends turned into LF, as Python's ``open`` does.
    """
    source = text if decoded or "\r" not in text else text.replace("\r\n", "\n").replace("\r", "\n")
    reading = read_hjson(source)
    if reading.too_deep:
        return unreadable(name, text, too_deep())
    spans = Spans(source, reading.places)
    placeholders = find_placeholders(source, reading)
    found = list(_findings(reading, spans, placeholders, in_file=not decoded))
    departure = departure_from_json(f"\ufeff{source}" if has_mark else source)
    return Document(
        name=name,
        value=reading.value,
        format=Format.BASE64 if decoded else Format.HJSON if departure else Format.JSON,
        text=text,
        spans=spans,
        diagnostics=tuple(found),
        is_template=bool(placeholders),
        placeholders=placeholders,
        departure=departure,
        has_mark=has_mark,
        is_broken=bool(reading.problems) or reading.is_blank or not isinstance(reading.value, dict),
    )


def unreadable(name: str, text: str | None, why: Diagnostic) -> Document:
    """A document that holds nothing but the reason."""
    return Document(
        name=name, value={}, format=Format.HJSON, text=text, diagnostics=(why,), is_unreadable=True
    )


def too_deep() -> Diagnostic:
    message = f"this is nested more than {DEEPEST} levels deep; Python's readers stop with an error"
    return findings.unreadable(message, "a config needs three or four levels")


def find_placeholders(source: str, reading: Reading) -> frozenset[str]:
    """The pointers whose value is a placeholder."""
    found: set[str] = set()
    for pointer, start, end in reading.bare_texts:
        quoted = source[reading.places[pointer][0] : reading.places[pointer][0] + 1] in "\"'"
        value = source[start:end].strip()
        if templates.is_placeholder(value, is_bare=True, key_is_quoted=quoted):
            found.add(pointer)
    if templates.may_hold_placeholder(source):
        for pointer, value in templates.strings(reading.value):
            if templates.is_placeholder(value, is_bare=False):
                found.add(pointer)
    return frozenset(found)


def _findings(
    reading: Reading, spans: Spans, placeholders: frozenset[str], *, in_file: bool
) -> list[Diagnostic]:
    found = [
        findings.syntax_error(
            problem.message, problem.pointer, spans.lines.range(problem.start, problem.end), None
        )
        for problem in reading.problems
    ]
    for pointer, start, end in reading.duplicates:
        place = spans.lines.range(start, end)
        key = split(pointer)[-1]
        found.append(findings.duplicate_key(key, pointer, place, in_file=in_file))
    if reading.is_blank:
        found.append(findings.empty_text("the file"))
    elif not isinstance(reading.value, dict):
        kind = KINDS.get(type(reading.value).__name__, "a number")
        found.append(findings.not_an_object(kind, spans[""].value))
    if placeholders:
        found.append(findings.template(len(placeholders), refused=bool(reading.problems)))
    for pointer, start, end in reading.bare_texts:
        if pointer and pointer not in placeholders:
            found.extend(_bare_text(spans, pointer, start, end))
    return found


def _bare_text(spans: Spans, pointer: str, start: int, end: int) -> list[Diagnostic]:
    """What is to be said about a value without quotes."""
    value = spans.lines.text[start:end].strip()
    place = spans.lines.range(start, start + len(value))
    word = value.split(",", 1)[0].rstrip(" \t}]")
    if word in NUMBER_WORDS:
        return [findings.not_a_number(pointer, place, word)]
    if not any(mark in value for mark in ',}]#"'):
        return []
    only_comma = value.rstrip(" \t").removesuffix(",").rstrip() == word
    fix = None
    if only_comma:
        token: Range = spans.lines.range(start, start + len(word))
        fix = findings.replacement(token, PYTHON_WORDS.get(word, f'"{word}"'))
    return [findings.swallowed_line(pointer, place, value, fix)]

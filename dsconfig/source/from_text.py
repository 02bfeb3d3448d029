"""Read HJSON or JSON text as a Document."""

import json
from collections.abc import Iterator

from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Diagnostic, Fix, Range
from dsconfig.source import findings
from dsconfig.source.cursor import Parsed
from dsconfig.source.document import Document, Format, JsonError, finish, too_deep, unreadable
from dsconfig.source.hjson import read_hjson
from dsconfig.source.positions import LineIndex, Spans

with lazy_imports():
    from dsconfig.source import templates

PLACEHOLDER_MARKS = ("$", "{{", "{%", "<", "%(", "@", "__")
"""Every template contains one of these; other files skip the template check."""
NUMBER_WORDS = ("NaN", "Infinity", "-Infinity")
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def document_from_text(
    text: str, name: str, *, has_bom: bool = False, decoded: bool = False
) -> Document:
    """Read HJSON text. ``decoded``: it comes from base64, where duplicate keys are accepted.

    Line ends are normalized to LF, as Python's ``open`` does.
    """
    source = text if decoded or "\r" not in text else text.replace("\r\n", "\n").replace("\r", "\n")
    parsed = read_hjson(source, skip_mark=not has_bom)
    if parsed.too_deep:
        return unreadable(name, text, too_deep())
    placeholders: frozenset[str] = frozenset()
    if parsed.problems or parsed.bare_texts or any(mark in source for mark in PLACEHOLDER_MARKS):
        parsed, placeholders = templates.filled_in(source, parsed)
    spans = Spans(source, parsed.places)
    json_error = json_error_in(f"\ufeff{source}" if has_bom else source)
    read = Document(
        name,
        parsed.value,
        Format.BASE64 if decoded else Format.HJSON if json_error else Format.JSON,
        text,
        spans,
        tuple(_findings(parsed, spans, placeholders, in_file=not decoded)),
        placeholders,
        json_error,
        has_bom,
        is_broken=bool(parsed.problems) or parsed.is_blank,
    )
    return finish(read)


def _findings(
    parsed: Parsed, spans: Spans, placeholders: frozenset[str], *, in_file: bool
) -> Iterator[Diagnostic]:
    reported: set[str] = set(placeholders)
    bare = {pointer: start for pointer, start, _ in parsed.bare_texts}
    for problem in parsed.problems:
        place = spans.lines.range(problem.start, problem.end)
        reported.add(problem.pointer)
        help, fix = (
            _remedy(spans, bare[problem.pointer]) if problem.pointer in bare else (None, None)
        )
        yield findings.syntax_error(problem.message, problem.pointer, place, help, fix)
    for pointer, start, end in parsed.duplicates:
        yield findings.duplicate_key(pointer, spans.lines.range(start, end), in_file=in_file)
    if parsed.is_blank:
        yield findings.empty_text()
    for pointer, start, end in parsed.bare_texts:
        if pointer and pointer not in reported:
            yield from _bare_text(spans, pointer, start, end)


def _remedy(spans: Spans, start: int) -> tuple[str, Fix | None]:
    """Return help and fix for an unquoted string that hides a bracket."""
    text = spans.lines.text
    for word, content in PYTHON_WORDS.items():
        if (
            text.startswith(word, start)
            and text[start + len(word) : start + len(word) + 1] in ",}] \t"
        ):
            place = spans.lines.range(start, start + len(word))
            return f"write {content}", findings.replacement(place, content)
    return "quote the string", None


def _bare_text(spans: Spans, pointer: str, start: int, end: int) -> Iterator[Diagnostic]:
    """Yield the finding for an unquoted string, if any."""
    value = spans.lines.text[start:end].strip()
    place = spans.lines.range(start, start + len(value))
    word = value.split(",", 1)[0].rstrip(" \t}]")
    if word in NUMBER_WORDS:
        yield findings.not_a_number(pointer, place, word)
    elif any(mark in value for mark in ',}]#"'):
        # Only a single plain word can be quoted safely.
        only_comma = value == f"{word}," and not set(word) & set("\"'{}[]:# \t\\")
        token: Range = spans.lines.range(start, start + len(word))
        content = PYTHON_WORDS.get(word) or json.dumps(word, ensure_ascii=not word.isprintable())
        fix = findings.replacement(token, content) if only_comma else None
        yield findings.unquoted_string(pointer, place, value, fix)


def json_error_in(text: str) -> JsonError | None:
    """Return the first error of ``json.loads``, or None if it reads the text."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        place = LineIndex(text).range(error.pos, error.pos + 1)
        return JsonError(place, _why(text, error))
    except ValueError as error:  # an integer with more digits than Python parses
        return JsonError(LineIndex(text).range(0, 0), str(error))
    return None


def _why(text: str, error: json.JSONDecodeError) -> str:
    """Name the construct that strict JSON does not allow."""
    rest = text[error.pos : error.pos + 2]
    before = text[: error.pos].rstrip()[-1:]
    if not text.strip():
        return "an empty text"
    if rest.startswith("\ufeff"):
        return "a byte order mark"
    if rest.startswith("#") or rest in ("//", "/*"):
        return "a comment"
    if before == "," and rest[:1] in ("}", "]"):
        return "a trailing comma"
    if error.msg.startswith("Expecting property name"):
        return "a trailing comma" if rest[:1] == "}" else "a key without double quotes"
    if error.msg.startswith("Expecting ','"):
        return "a missing comma"
    if error.msg.startswith("Expecting value"):
        return "an unquoted string" if rest[:1] != "'" else "single quotes"
    return error.msg[:1].lower() + error.msg[1:]

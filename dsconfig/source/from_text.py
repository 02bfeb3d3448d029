"""Read HJSON or JSON text as a Document."""

import json
import re
from collections.abc import Iterable, Iterator

from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import Diagnostic, Fix, Range
from dsconfig.source import findings
from dsconfig.source.cursor import Parsed
from dsconfig.source.document import Document, Format, JsonError, finish, too_deep, unreadable
from dsconfig.source.hjson import read_hjson
from dsconfig.source.plain import TOO_MANY_DIGITS
from dsconfig.source.pointer import is_block, is_list, lookup, split, value_at
from dsconfig.source.positions import LineIndex, Spans

with lazy_imports():
    from dsconfig.source import prose, templates

PLACEHOLDER_MARKS = ("$", "{{", "{%", "<", "%(", "@", "__")
"""Every template contains one of these; other files skip the template check."""
COMMENT = "a comment"
"""What strict JSON rejects in a file with comments."""
NUMBER_WORDS = ("NaN", "Infinity", "-Infinity")
NUMBER_WORD = re.compile(r"(?:NaN|-?Infinity)(?=[ \t\r\n]*[,}\]])")
"""Numbers for Python's ``json``, unquoted strings for HJSON."""
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def document_from_text(
    text: str,
    name: str,
    *,
    has_bom: bool = False,
    decoded: bool = False,
    number_words: bool = False,
) -> Document:
    """Read HJSON text. ``decoded``: it comes from base64, where duplicate keys are accepted.

    Line ends are normalized to LF, as Python's ``open`` does. With ``number_words`` NaN and
    Infinity are numbers, as for Python's ``json``.
    """
    source = text if decoded or "\r" not in text else text.replace("\r\n", "\n").replace("\r", "\n")
    token = NUMBER_WORD if number_words else None
    parsed = read_hjson(source, token=token, skip_mark=not has_bom)
    if number_words:
        _convert_number_words(parsed)
    if parsed.too_deep:
        return unreadable(name, text, too_deep())
    placeholders: frozenset[str] = frozenset()
    diagnostics: Iterable[Diagnostic] = ()
    if _may_be_prose(source, parsed) and prose.is_prose(source, parsed):
        diagnostics = (prose.not_json(source),)
    elif parsed.problems or parsed.bare_texts or any(mark in source for mark in PLACEHOLDER_MARKS):
        parsed, placeholders = templates.filled_in(source, parsed)
    spans = Spans(source, parsed.places)
    json_error = json_error_in(f"\ufeff{source}" if has_bom else source)
    read = Document(
        name,
        parsed.value,
        Format.BASE64 if decoded else Format.HJSON if json_error else Format.JSON,
        text,
        spans,
        tuple(diagnostics or _findings(parsed, spans, placeholders, in_file=not decoded)),
        placeholders,
        json_error,
        has_bom,
        is_broken=bool(parsed.problems) or parsed.is_blank,
    )
    return finish(read)


def _convert_number_words(parsed: Parsed) -> None:
    """Replace strings that matched ``NUMBER_WORD`` by numbers."""
    for pointer, _, _ in parsed.bare_texts:
        path = split(pointer)
        parent, last = value_at(parsed.value, path.parent), path.name
        if is_list(parent) and parent[int(last)] in NUMBER_WORDS:
            parent[int(last)] = float(parent[int(last)])
        elif is_block(parent) and parent[last] in NUMBER_WORDS:
            parent[last] = float(parent[last])
    parsed.bare_texts = [
        text for text in parsed.bare_texts if isinstance(lookup(parsed.value, text[0]), str)
    ]


def _may_be_prose(source: str, parsed: Parsed) -> bool:
    """Return whether a text has syntax errors and does not start with a bracket."""
    return bool(parsed.problems) and source.lstrip("\ufeff \t\r\n")[:1] not in ("{", "[")


def _findings(
    parsed: Parsed, spans: Spans, placeholders: frozenset[str], *, in_file: bool
) -> Iterator[Diagnostic]:
    reported: set[str] = set(placeholders)
    bare = {pointer: start for pointer, start, _ in parsed.bare_texts}
    for problem in parsed.problems:
        place = spans.lines.range(problem.start, problem.end)
        reported.add(problem.pointer)
        message, help, fix = problem.message, None, None
        if problem.pointer in bare:
            help, fix = _remedy(spans, bare[problem.pointer])
            word = _python_word(spans.lines.text, bare[problem.pointer])
            number = NUMBER_WORD.match(spans.lines.text, bare[problem.pointer])
            if word is not None:
                message = findings.python_literal(word, PYTHON_WORDS[word])
            elif number is not None:
                message, help = findings.number_word(number[0]), "write a number"
        yield findings.syntax_error(message, problem.pointer, place, help, fix)
    for pointer, start, end in parsed.duplicates:
        yield findings.duplicate_key(pointer, spans.lines.range(start, end), in_file=in_file)
    if parsed.is_blank:
        yield findings.empty_text()
    for pointer, start, end in parsed.bare_texts:
        if pointer and pointer not in reported:
            yield from _bare_text(spans, pointer, start, end)


def _remedy(spans: Spans, start: int) -> tuple[str, Fix | None]:
    """Return help and fix for an unquoted string that hides a bracket."""
    word = _python_word(spans.lines.text, start)
    if word is None:
        return "quote the string", None
    place = spans.lines.range(start, start + len(word))
    return f"write {PYTHON_WORDS[word]}", findings.replacement(place, PYTHON_WORDS[word])


def _python_word(text: str, start: int) -> str | None:
    """Return the Python literal (True, False, None) at an offset, if any."""
    for word in PYTHON_WORDS:
        end = start + len(word)
        if text.startswith(word, start) and text[end : end + 1] in ("", *",}] \t\r\n#/"):
            return word
    return None


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
        python = findings.python_literal(word, content) if word in PYTHON_WORDS else ""
        yield findings.unquoted_string(pointer, place, value, fix, python)


def json_error_in(text: str) -> JsonError | None:
    """Return the first error of ``json.loads``, or None if it reads the text."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        place = LineIndex(text).range(error.pos, error.pos + 1)
        return JsonError(place, _why(text, error))
    except ValueError:
        return JsonError(LineIndex(text).range(0, 0), TOO_MANY_DIGITS)
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
        return COMMENT
    if before == "," and rest[:1] in ("}", "]"):
        return "a trailing comma"
    if error.msg.startswith("Expecting property name"):
        return "a trailing comma" if rest[:1] == "}" else "a key without double quotes"
    if error.msg.startswith("Expecting ','"):
        return "a missing comma"
    if error.msg.startswith("Expecting value"):
        word = _python_word(text, error.pos)
        if word is not None:
            return f"the Python literal {word}"
        return "an unquoted string" if rest[:1] != "'" else "single quotes"
    return error.msg[:1].lower() + error.msg[1:]

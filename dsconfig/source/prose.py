"""Text around a config, such as a pasted message or a log: one finding instead of many."""

import re

from dsconfig.report import Diagnostic
from dsconfig.source import findings
from dsconfig.source.cursor import Parsed
from dsconfig.source.document import count_distinctive
from dsconfig.source.hjson import read_hjson
from dsconfig.source.pointer import is_block
from dsconfig.source.positions import LineIndex

OBJECT_START = re.compile(r"^[ \t]*(\{)(?=[ \t]*(?:[\"'}\r\n#/]|\w+[ \t]*:))", re.MULTILINE)
MARKUP = re.compile(r"^[ \t]*(?:```|<!--)", re.MULTILINE)
"""Markdown fences and HTML comments, which no config contains."""
MAX_OBJECTS = 20
"""Objects that are searched for keys of a ds_config."""


def is_prose(source: str, parsed: Parsed) -> bool:
    """Return whether text with syntax errors is not a config without braces."""
    if MARKUP.search(source):
        return True
    if is_block(parsed.value) and count_distinctive(parsed.value):
        return False
    return len(parsed.problems) > 1 or OBJECT_START.search(source) is not None


def not_json(source: str) -> Diagnostic:
    """Return the finding for a text that is not JSON, with the line of the first config in it."""
    lines = LineIndex(source)
    begin = len(source) - len(source.lstrip())
    line = lines.position(begin).line
    end = lines.starts[line - 1] + len(lines.line(line))
    return findings.not_json(lines.range(begin, end), _object_line(source, lines))


def _object_line(source: str, lines: LineIndex) -> int | None:
    """Return the line of the first object with ds_config keys, or else of the first object."""
    starts = [match.start(1) for match in OBJECT_START.finditer(source)][:MAX_OBJECTS]
    for start in starts:
        value = read_hjson(source[start:]).value
        if is_block(value) and count_distinctive(value):
            return lines.position(start).line
    return lines.position(starts[0]).line if starts else None

"""Printing: how text and JSON reach a terminal, a pipe or the log of a CI job."""

import re
import sys
from typing import Any

from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import writers
from dsconfig.report.render.terminal import look_of

with lazy_imports():
    from dsconfig.commands import text_table

_COLOR = re.compile(r"(\x1b\[[0-9;]*m)")


def print_text(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines, in which only colors are control codes; ``nl`` ends the last one."""
    stream = sys.stderr if err else sys.stdout
    parts = _COLOR.split(text) if look_of(stream).color else [text]
    shown = "".join(
        part if place % 2 else writers.visible(part) for place, part in enumerate(parts)
    )
    stream.write(writers.harmless_in_ci(shown) + ("\n" if nl else ""))
    stream.flush()


def error_line(message: str) -> None:
    """Print an error as one line on stderr, wrapped on a terminal."""
    line = f"dsconfig: error: {message}"
    print_text(text_table.fitted(line) if sys.stderr.isatty() else line, err=True)


def print_json(value: Any, **options: Any) -> None:
    """Print a value as JSON; ``options`` are those of json.dumps."""
    is_unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    sys.stdout.write(f"{writers.json_text(value, ascii_only=not is_unicode, **options)}\n")

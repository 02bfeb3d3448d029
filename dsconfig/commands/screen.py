"""Repeat the verdict below output that is longer than the terminal."""

import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from dsconfig.commands.printing import print_text
from dsconfig.commands.text_table import colored_verdict, paragraph


class _LineCounter:
    """A stream that counts the lines written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lines = 0

    def write(self, text: str) -> int:
        self.lines += text.count("\n")
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def ending_with(verdict: str, *more: str) -> Generator[None]:
    """Print ``verdict`` and ``more`` again at the end if the output has scrolled past."""
    stream = sys.stdout
    if not stream.isatty():
        yield
        return
    counted = _LineCounter(stream)
    sys.stdout = cast(TextIO, counted)
    try:
        yield
    finally:
        sys.stdout = stream
    if counted.lines >= shutil.get_terminal_size().lines:
        print_text(f"\n{colored_verdict(paragraph(verdict))}")
        for line in more:
            print_text(line)

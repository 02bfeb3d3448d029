"""Notes on stderr, which ``-q`` suppresses."""

import sys
from typing import Annotated

import typer

from dsconfig.commands.printing import print_text
from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.commands import text_table

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no notes, only results and errors.")
]
_state = {"quiet": False}


def set_quiet(quiet: bool) -> None:
    """Suppress or enable notes for this process."""
    _state["quiet"] = quiet


def is_quiet() -> bool:
    return _state["quiet"]


def note(text: str) -> None:
    """Print a note to stderr, unless suppressed; on a terminal wrapped to its width."""
    if not is_quiet():
        print_text(text_table.fitted(text) if sys.stderr.isatty() else text, err=True)

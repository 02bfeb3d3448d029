"""Where commands print: tables for people, sized to the terminal, plain when piped."""

import shutil
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 120
"""Columns when nobody looks at a screen; COLUMNS overrides it."""


@cache
def console() -> "Console":
    """A rich console that keeps to NO_COLOR, FORCE_COLOR and COLUMNS."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
    return Console(width=width, highlight=False, soft_wrap=False)

"""Where commands print: tables for people, sized to the terminal, plain when piped."""

import shutil
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 120
"""Columns when nobody looks at a screen; COLUMNS overrides it."""


@lru_cache(maxsize=2)
def console(*, stderr: bool = False) -> "Console":
    """A rich console that keeps to NO_COLOR, FORCE_COLOR and COLUMNS."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)

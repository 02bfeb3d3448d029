"""Messages on standard error."""

import sys

from dsconfig import terminal_text


def print_error(text: object) -> None:
    """Print lines in which names, paths and errors have no control codes."""
    print(terminal_text(str(text)), file=sys.stderr, flush=True)

"""Error lines of the command line."""

import sys


def error_line(message: str) -> None:
    """Print an error as one line on stderr, wrapped on a terminal."""
    from dsconfig.commands.text_table import fitted
    from dsconfig.report.render.terminal import visible

    line = f"dsconfig: error: {visible(message)}"
    print(fitted(line) if sys.stderr.isatty() else line, file=sys.stderr)

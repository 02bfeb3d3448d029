"""Progress display for commands that may take longer than a moment."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from threading import Event, Thread

from dsconfig.commands.notes import is_quiet

DELAY = 1.0
"""Seconds before anything is shown: most runs finish earlier."""


@contextmanager
def progress(task: str, delay: float = DELAY) -> Generator[None]:
    """Show ``task`` with the elapsed time on stderr while the block runs.

    Nothing is shown with ``-q``, if stderr is not a terminal, or if the block ends within ``delay``
    seconds.
    """
    if not sys.stderr.isatty() or is_quiet():
        yield
        return
    finished = Event()
    thread = Thread(target=_show, args=(task, delay, finished), daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _show(task: str, delay: float, finished: Event) -> None:
    if finished.wait(delay):
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        display.add_task(task)
        finished.wait()

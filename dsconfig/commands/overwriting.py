"""One rule for ``-o``: an existing file is replaced only with ``--force``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from dsconfig import os_errors
from dsconfig.project.errors import UsageError

Force = Annotated[bool, typer.Option("--force", help="Replace the file of -o if it exists.")]
OUTPUT = "output"
"""Parameter of the commands that write a file."""


def refuse_existing(output: Path | None, *, force: bool) -> None:
    """Raise UsageError for an existing file without ``--force``, before the command runs.

    Empty files, as made by mktemp, and devices are replaced.
    """
    if output is not None and not force and _has_content(output):
        raise UsageError(f"-o {output}: the file exists; specify another file, or --force")


def _has_content(path: Path) -> bool:
    return os_errors.is_file(path) and os.path.getsize(path) > 0  # noqa: PTH202

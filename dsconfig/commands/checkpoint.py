"""``dsconfig checkpoint``: what can be said of a saved training state without loading it."""

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dsconfig.commands.errors import UsageError
from dsconfig.lazily import lazily
from dsconfig.report.sizes import gib

with lazily():
    from dsengine.checkpoints import verification


class Action(StrEnum):
    VERIFY = "verify"


def checkpoint(
    action: Annotated[Action, typer.Argument(help="verify: read every byte, compare checksums.")],
    folder: Annotated[Path, typer.Argument(help="A checkpoint, or the directory of several.")],
    tag: Annotated[str | None, typer.Option(help="Which one; else what 'latest' names.")] = None,
) -> None:
    """Say whether a checkpoint of dsengine is what was written.

    Exit code 0 when it is, 1 when a piece differs or is missing.

    Examples:
      dsconfig checkpoint verify out
      dsconfig checkpoint verify out --tag global_step120
    """
    if find_spec("torch") is None:
        raise UsageError("checkpoint needs torch: pip install 'dsconfig-zero[engine]'")
    path = verification.chosen(folder, tag)
    compared, faults = verification.verify(path)
    for fault in faults:
        typer.echo(fault, err=True)
    if faults:
        raise typer.Exit(1)
    typer.echo(f"{path}: all {gib(compared, 2)} are what was written")

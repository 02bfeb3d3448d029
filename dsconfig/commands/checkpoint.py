"""``dsconfig checkpoint``: what can be said of a saved training state without loading it."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dsconfig.commands.errors import UsageError
from dsconfig.report.sizes import gib


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
    try:
        # Lazily would do for the module, not for its package, which imports torch: no help then.
        from dsengine.checkpoints import verification
    except ImportError:
        raise UsageError("checkpoint needs torch: pip install 'dsconfig-zero[engine]'") from None
    path = verification.chosen(folder, tag)
    compared, faults = verification.verify(path)
    for fault in faults:
        typer.echo(fault, err=True)
    if faults:
        raise typer.Exit(1)
    typer.echo(f"{path}: all {gib(compared, 2)} are what was written")

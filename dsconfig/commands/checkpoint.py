"""``dsconfig checkpoint``: what can be said of a saved training state, and made of it, unloaded."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dsconfig.commands.errors import UsageError
from dsconfig.report.sizes import size
from dsconfig.runtimes.effective import Precision


class Action(StrEnum):
    VERIFY = "verify"
    CONVERT = "convert"


class Form(StrEnum):
    """In whose files a checkpoint is to lie."""

    DEEPSPEED = "deepspeed"
    SAFETENSORS = "safetensors"


_of_convert = partial(typer.Option, rich_help_panel="Of convert")


def checkpoint(
    action: Annotated[
        Action,
        typer.Argument(
            help="verify: read every byte, compare checksums. convert: write it for others."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="A checkpoint, or the directory of several.")],
    tag: Annotated[str | None, typer.Option(help="Which one; else what 'latest' names.")] = None,
    to: Annotated[
        Form | None,
        _of_convert(help="deepspeed: all that its engine goes on with. safetensors: the weights."),
    ] = None,
    output: Annotated[
        Path | None,
        _of_convert("--output", "-o", help="The folder to write."),
    ] = None,
    stage: Annotated[
        int | None,
        _of_convert(min=0, max=3, help="Of the run in DeepSpeed; else as saved."),
    ] = None,
    ranks: Annotated[
        int | None,
        _of_convert(
            min=1, help="Of the run in DeepSpeed, which loads at no other number; else as saved."
        ),
    ] = None,
    precision: Annotated[
        Precision | None,
        _of_convert(help="Of the safetensors; else fp32."),
    ] = None,
) -> None:
    """Say whether a checkpoint of dsengine is what was written, or write it in other files.

    Exit code 0 when it is, or is written; 1 when a piece differs, is missing, or has no place in
    the files asked for. A checkpoint that DeepSpeed has saved converts too, to other stages and
    numbers of ranks. No code in a file is run; all of it is held in main memory meanwhile.

    Examples:
      dsconfig checkpoint verify out
      dsconfig checkpoint verify out --tag global_step120
      dsconfig checkpoint convert out --to deepspeed -o theirs --stage 3 --ranks 8
      dsconfig checkpoint convert out --to safetensors -o weights --precision bf16
    """
    try:
        # Lazily would do for the module, not for its package, which imports torch: no help then.
        from dsengine.checkpoints import CheckpointError, conversion, verification
    except ImportError:
        raise UsageError("checkpoint needs torch: pip install 'dsconfig-zero[engine]'") from None
    path = verification.checkpoint_path(folder, tag)
    _check_flags(action, to, output, stage=stage, ranks=ranks, precision=precision)
    if to is not None and output is not None:
        try:
            if to is Form.SAFETENSORS:
                said = conversion.to_safetensors(
                    path.resolve(), output, precision or Precision.FP32
                )
            else:
                said = conversion.to_deepspeed(path.resolve(), output, stage, ranks)
        except CheckpointError as error:
            typer.echo(f"{error}", err=True)
            raise typer.Exit(1) from None
        except OSError as error:
            raise UsageError(f"{error.filename or output}: {error.strerror}") from None
        typer.echo(said)
        return
    compared, faults = verification.verify(path)
    for fault in faults:
        typer.echo(fault, err=True)
    if faults:
        raise typer.Exit(1)
    typer.echo(f"{path}: all {size(compared)} are what was written")


def _check_flags(action: Action, to: Form | None, output: Path | None, **of_form: object) -> None:
    """Raises UsageError for flags that are missing, or say nothing to what is asked."""
    if action is Action.CONVERT and (to is None or output is None):
        raise UsageError("convert: say --to deepspeed or --to safetensors, and -o FOLDER")
    meant = {Form.DEEPSPEED: {"stage", "ranks"}, Form.SAFETENSORS: {"precision"}}
    given = {
        name for name, value in {"to": to, "output": output, **of_form}.items() if value is not None
    }
    if action is Action.CONVERT and to is not None:
        given -= {"to", "output"} | meant[to]
    if given:
        flags = ", ".join(f"--{name}" for name in sorted(given))
        asked = f"{action} --to {to}" if action is Action.CONVERT else str(action)
        raise UsageError(f"{asked} has no use for {flags}")

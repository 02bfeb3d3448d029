"""``dsconfig checkpoint``: verify and convert checkpoints without loading a model."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dsconfig import os_errors
from dsconfig.commands.printing import print_text
from dsconfig.commands.progress import progress
from dsconfig.project.errors import UsageError
from dsconfig.report.sizes import size
from dsconfig.runtimes.effective import Precision


class Action(StrEnum):
    VERIFY = "verify"
    CONVERT = "convert"


class Format(StrEnum):
    """Target formats."""

    DEEPSPEED = "deepspeed"
    SAFETENSORS = "safetensors"


_convert_option = partial(typer.Option, rich_help_panel="Options of convert")


def checkpoint(
    action: Annotated[
        Action,
        typer.Argument(help="verify: compare all checksums; convert: write another format."),
    ],
    folder: Annotated[Path, typer.Argument(help="Checkpoint, or directory of checkpoints.")],
    tag: Annotated[
        str | None,
        typer.Option(metavar="TAG", help="Checkpoint tag (default: from the file 'latest')."),
    ] = None,
    to: Annotated[
        Format | None,
        _convert_option(help="deepspeed (full training state) or safetensors (weights)."),
    ] = None,
    output: Annotated[
        Path | None,
        _convert_option("--output", "-o", metavar="DIR", help="Output directory."),
    ] = None,
    stage: Annotated[
        int | None,
        _convert_option(
            min=0, max=3, help="ZeRO stage of the run in DeepSpeed (default: as saved)."
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        _convert_option(min=1, help="Number of ranks of the run in DeepSpeed (default: as saved)."),
    ] = None,
    precision: Annotated[
        Precision | None,
        _convert_option(help="Precision of the safetensors (default: fp32)."),
    ] = None,
) -> None:
    """Verify or convert a dsengine checkpoint.

    DeepSpeed checkpoints can be converted too, to other stages and numbers of ranks. Conversion
    keeps the whole checkpoint in host memory (RAM); no code in the files is executed.

    Exit code 1 if a file differs or is missing, or cannot be represented in the target format.

    Examples:
      dsconfig checkpoint verify out
      dsconfig checkpoint verify out --tag global_step120
      dsconfig checkpoint convert out --to deepspeed -o new --stage 3 --ranks 8
      dsconfig checkpoint convert out --to safetensors -o new --precision bf16
    """
    try:
        # Not lazy: the package itself imports torch, and --help must work without it.
        from dsengine.checkpoints import CheckpointError, conversion, directory, manifest
    except ImportError:
        raise UsageError("checkpoint requires torch: pip install 'dsconfig-zero[engine]'") from None
    if not os_errors.is_folder(folder):
        raise UsageError(f"{folder}: directory not found")
    path = directory.checkpoint_path(folder, tag)
    _check_flags(action, to, output, stage=stage, ranks=ranks, precision=precision)
    if to is not None and output is not None:
        try:
            with progress(f"Converting {path}"):
                if to is Format.SAFETENSORS:
                    dtype = precision or Precision.FP32
                    summary = conversion.to_safetensors(path.resolve(), output, dtype)
                else:
                    summary = conversion.to_deepspeed(path.resolve(), output, stage, ranks)
        except CheckpointError as error:
            print_text(f"{error}", err=True)
            raise typer.Exit(1) from None
        except OSError as error:
            raise UsageError(f"{error.filename or output}: {error.strerror}") from None
        print_text(summary)
        return
    with progress(f"Verifying {path}"):
        compared, faults = manifest.verify(path)
    for fault in faults:
        print_text(fault, err=True)
    if faults:
        raise typer.Exit(1)
    print_text(f"{path}: OK: {size(compared)} verified")


def _check_flags(
    action: Action, to: Format | None, output: Path | None, **format_options: object
) -> None:
    """Raise UsageError for missing flags and for flags without effect."""
    if action is Action.CONVERT and (to is None or output is None):
        raise UsageError("convert requires --to deepspeed or --to safetensors, and -o DIR")
    accepted = {Format.DEEPSPEED: {"stage", "ranks"}, Format.SAFETENSORS: {"precision"}}
    specified = {
        name
        for name, value in {"to": to, "output": output, **format_options}.items()
        if value is not None
    }
    if action is Action.CONVERT and to is not None:
        specified -= {"to", "output"} | accepted[to]
    if specified:
        flags = ", ".join(f"--{name}" for name in sorted(specified))
        command = f"{action} --to {to}" if action is Action.CONVERT else str(action)
        raise UsageError(f"{command} does not take {flags}")

"""One rule for ``-o``: an existing file is replaced only with ``--force``."""

import os
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from dsconfig import os_errors
from dsconfig.project.errors import UsageError

Force = Annotated[bool, typer.Option("--force", help="Replace the file of -o if it exists.")]
OUTPUT = "output"
"""Parameter of the commands that write a file."""


def with_force(command: Any) -> Any:
    """Add ``--force`` to a command that has ``-o FILE``, which refuses existing files without it.

    They are refused before the command runs. Empty files, as made by mktemp, and devices are not.
    """
    original = signature(command)
    parameter = original.parameters.get(OUTPUT)
    if parameter is None:
        return command

    @wraps(command)
    def wrapper(*, force: bool = False, **arguments: Any) -> Any:
        output: Path | None = arguments[OUTPUT]
        if output is not None and not force and _has_content(output):
            raise UsageError(f"-o {output}: the file exists; specify another file, or --force")
        return command(**arguments)

    flag = Parameter("force", Parameter.KEYWORD_ONLY, default=False, annotation=Force)
    parameters: list[Parameter] = []
    for each in original.parameters.values():
        parameters.append(each.replace(kind=Parameter.KEYWORD_ONLY))
        parameters += [flag] if each.name == OUTPUT else []
    wrapper.__signature__ = original.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {**command.__annotations__, "force": Force}
    return wrapper


def _has_content(path: Path) -> bool:
    return os_errors.is_file(path) and os.path.getsize(path) > 0  # noqa: PTH202

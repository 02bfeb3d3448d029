"""Notes on stderr, which ``-q`` suppresses."""

import sys
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from dsconfig.commands.printing import print_text
from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.commands import text_table

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no notes, only results and errors.")
]
_state = {"quiet": False}


def set_quiet(quiet: bool) -> None:
    """Suppress or enable notes for this process."""
    _state["quiet"] = quiet


def is_quiet() -> bool:
    return _state["quiet"]


def note(text: str) -> None:
    """Print a note to stderr, unless suppressed; on a terminal wrapped to its width."""
    if not is_quiet():
        print_text(text_table.fitted(text) if sys.stderr.isatty() else text, err=True)


def with_quiet(command: Any) -> Any:
    """Add ``-q`` to a command, unless it has the flag."""
    original = signature(command)
    if "quiet" in original.parameters:
        return command

    @wraps(command)
    def wrapper(*, quiet: bool = False, **arguments: Any) -> Any:
        set_quiet(quiet)
        return command(**arguments)

    flag = Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    parameters = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in original.parameters.values()
    ]
    wrapper.__signature__ = original.replace(parameters=[*parameters, flag])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {**command.__annotations__, "quiet": Quiet}
    return wrapper

"""Run ``dsconfig`` as a process of its own, forked from one that has imported its modules.

Imports take most of the time of a short command; a fork shares them. Standard streams, working
directory, environment and exit code are those of a new process.
"""

import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import dsconfig
from fork_server import ForkServer, answer

Done = subprocess.CompletedProcess[str]


def run(
    *arguments: object,
    cwd: Path | None = None,
    stdin: str | bytes = b"",
    columns: int = 120,
    environment: Mapping[str, str | None] = MappingProxyType({}),
    with_torch: bool = False,
) -> Done:
    """Run ``dsconfig`` with these arguments and return its output as text.

    ``environment`` adds variables; None removes one. ``with_torch``: for commands that import torch
    anyway, have it imported.
    """
    variables: dict[str, str | None] = {**os.environ, "COLUMNS": str(columns), **environment}
    request = _request(arguments, cwd or Path.cwd(), variables)
    typed = stdin.encode() if isinstance(stdin, str) else stdin
    return _server(with_torch).completed(request, typed)


def run_on_terminal(
    terminal: int, *arguments: object, cwd: Path, environment: Mapping[str, str]
) -> int:
    """Run ``dsconfig`` with this descriptor as all standard streams; return its exit code.

    ``environment`` has all variables.
    """
    return _server(False).call(_request(arguments, cwd, environment), [terminal] * 3)


def _request(
    arguments: Sequence[object], folder: Path, variables: Mapping[str, str | None]
) -> dict[str, Any]:
    return {
        "arguments": [*map(str, arguments)],
        "folder": str(folder),
        "environment": {name: value for name, value in variables.items() if value is not None},
    }


@cache
def _server(with_torch: bool) -> ForkServer:
    return ForkServer("command_line", with_torch)


def serve(number: int, with_torch: bool) -> None:
    """Import every module of dsconfig, then fork a command per request until the socket closes."""
    import_everything()
    if with_torch:
        importlib.import_module("dsengine.checkpoints.export")
        importlib.import_module("dsengine.checkpoints.conversion")
    answer(number, _execute)


def import_everything() -> None:
    for module in pkgutil.walk_packages(dsconfig.__path__, "dsconfig."):
        if not module.name.endswith("__main__"):
            # A deferred module is executed when an attribute is read.
            getattr(importlib.import_module(module.name), "anything", None)


def _execute(arguments: list[str]) -> NoReturn:
    """Run one command in this process, which ends with it."""
    sys.argv = ["dsconfig", *arguments]
    sys.path[0] = ""
    from dsconfig.__main__ import program

    try:
        program()
    except SystemExit as error:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.code if isinstance(error.code, int) else 0)
    os._exit(0)

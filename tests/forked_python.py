"""Run a Python program as a process of its own, forked from one that has imported torch.

Importing torch takes most of the time of a short program. Everything else, dsengine included, is
imported by the program itself. Options of Python, ``sitecustomize`` and the absence of torch need a
new interpreter.
"""

import importlib
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from fork_server import ForkServer, answer

PRELOADED = ("torch", "torch.distributed.fsdp", "torch.distributed.tensor")
Done = subprocess.CompletedProcess[str]


def run(*arguments: str, environment: Mapping[str, str], folder: Path | None = None) -> Done:
    """Run ``python`` with ``-c CODE``, ``-m MODULE`` or a script, and their arguments."""
    request = {
        "arguments": arguments,
        "environment": dict(environment),
        "folder": str(folder or Path.cwd()),
    }
    return _server().completed(request)


@cache
def _server() -> ForkServer:
    return ForkServer("forked_python")


def serve(number: int) -> None:
    """Import torch, then fork a program per request until the socket closes."""
    for name in PRELOADED:
        importlib.import_module(name)
    server_paths = {"", *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    sys.path[:] = [path for path in sys.path if path not in server_paths]
    answer(number, _execute)


def _execute(arguments: list[str]) -> NoReturn:
    """Run one program in this process, which ends with it."""
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    code = 0
    try:
        _program(arguments)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _program(arguments: list[str]) -> None:
    """Run the program as ``__main__``, with its arguments in ``sys.argv``."""
    kind, *others = arguments
    match kind:
        case "-c":
            sys.argv, sys.path[:0] = ["-c", *others[1:]], [""]
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(others[0], "<string>", "exec"), main.__dict__)
        case "-m":
            sys.argv, sys.path[:0] = others, [str(Path.cwd())]
            runpy.run_module(others[0], run_name="__main__", alter_sys=True)
        case _:
            sys.argv, sys.path[:0] = arguments, [str(Path(kind).absolute().parent)]
            runpy.run_path(kind, run_name="__main__")

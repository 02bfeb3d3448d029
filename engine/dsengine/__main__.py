"""Run a program with dsengine in place of deepspeed, there and in every process below.

    dsengine train.py --deepspeed ds.json
    dsengine -m trl sft ...
    dsengine torchrun --nproc-per-node 8 train.py

The program replaces this process, so that signals, exit code and terminal are its own.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from dsengine import __version__
from dsengine.startup import child_environment, has_hook, is_required
from dsengine.stderr import print_error
from dsengine.unreplaced import start_watching

USAGE = "usage: dsengine [-h] [--version] (SCRIPT.py | -m MODULE | PROGRAM) [ARGS]..."
HELP = f"""{USAGE}

Run a program with dsengine in place of deepspeed, in its process and in all
Python processes below.

  dsengine train.py --deepspeed ds.json
  dsengine -m trl sft --config sft.yaml
  dsengine llamafactory-cli train sft.yaml
  dsengine torchrun --nproc-per-node 8 train.py
  dsengine accelerate launch train.py
  dsengine deepspeed --num_gpus 2 train.py
  dsengine bash run.sh

SCRIPT.py and MODULE run with this Python:
  {sys.executable}
PROGRAM is a path, or is looked up on PATH.

options:
  -h, --help  show this help
  --version   show the version

environment:
  DSENGINE=required  a process that would import another deepspeed exits with
                     an error

exit code:
  that of the program; 2 for a usage error, 126 if the program cannot be run,
  127 if it is not found
"""
_PYTHON_FILES = (".py", ".pyc", ".pyz")
USAGE_ERROR, NOT_EXECUTABLE, NOT_FOUND = 2, 126, 127
"""Exit codes: Python's for a missing script, and those of env(1) for programs."""


def main() -> NoReturn:
    """Run the command line; return only by an exception or the end of the process."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(HELP, end="")
        raise SystemExit(0)
    if arguments[:1] == ["--version"]:
        print(f"dsengine {__version__}")
        raise SystemExit(0)
    try:
        required = is_required()
    except ValueError as error:
        _fail(USAGE_ERROR, str(error))
    environment = child_environment(os.environ)
    command = command_of(arguments, environment)
    sys.stdout.flush()
    if not has_hook(os.environ):  # otherwise this process is already watched
        start_watching(required=required)
    try:
        os.execve(command[0], command, environment)
    except OSError as error:
        _fail(NOT_EXECUTABLE, f"cannot run {command[0]!r}: {error.strerror}")


def command_of(arguments: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command line of the program, with the path of its executable.

    Prints the error and exits if there is no such program.
    """
    if arguments[:1] == ["-m"]:
        if not arguments[1:]:
            _fail(USAGE_ERROR, f"-m requires a module\n{USAGE}")
        return [sys.executable, *arguments]
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments or arguments[0].startswith("-"):
        _fail(USAGE_ERROR, f"unknown option {arguments[0]}\n{USAGE}" if arguments else USAGE)
    name, *rest = arguments
    is_folder = os.sep in name and Path(name, "__main__.py").exists()
    if is_folder or name.endswith(_PYTHON_FILES):
        if not Path(name).exists():
            _fail(USAGE_ERROR, f"can't open file {name!r}: no such file")
        return [sys.executable, name, *rest]
    return [_executable(name, environment["PATH"]), *rest]


def _executable(name: str, path: str) -> str:
    """Return the path of a program, on PATH or next to this Python."""
    if os.sep not in name:
        found = shutil.which(name, path=os.pathsep.join([path, str(Path(sys.executable).parent)]))
        if found is not None:
            return found
        hint = f": use ./{name} for the file in this directory" if Path(name).exists() else ""
        _fail(NOT_FOUND, f"{name!r} is not on PATH{hint}")
    if not Path(name).exists():
        _fail(NOT_FOUND, f"{name!r}: no such file")
    if not os.access(name, os.X_OK):
        _fail(NOT_EXECUTABLE, f"{name!r} is not executable: put its interpreter before it")
    return name


def _fail(code: int, message: str) -> NoReturn:
    print_error(f"dsengine: {message}" if message != USAGE else USAGE)
    raise SystemExit(code)


if __name__ == "__main__":
    main()

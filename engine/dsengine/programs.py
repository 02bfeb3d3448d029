"""Run a script or module in this process, as ``python`` would."""

import runpy
import sys
from pathlib import Path

from dsengine.stderr import print_error


def run_program(arguments: list[str], own_name: str) -> None:
    """Run a script, or a module after ``-m``. Without either, print the usage and exit with 2."""
    is_module = arguments[:1] == ["-m"]
    program = arguments[1:] if is_module else arguments
    if not program or program[0].startswith("-"):
        usage = f"usage: python -m {own_name} (SCRIPT | -m MODULE) [ARGS]..."
        print_error(usage)
        raise SystemExit(2)
    if not is_module and not Path(program[0]).exists():
        print_error(f"{own_name}: can't open file {program[0]!r}: No such file")
        raise SystemExit(2)
    sys.argv = program
    folder = Path.cwd() if is_module else Path(program[0]).resolve().parent
    if sys.flags.safe_path:  # the first path is not that of the working directory
        sys.path.insert(0, str(folder))
    else:
        sys.path[0] = str(folder)
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program[0], run_name="__main__")

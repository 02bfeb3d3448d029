"""Let dsengine stand in for DeepSpeed: from here on ``import deepspeed`` gives ``dsengine``.

    import dsengine.as_deepspeed                            # the first line of a script, or
    python -m dsengine.as_deepspeed train.py                # scripts as they are
    torchrun --nproc-per-node 8 -m dsengine.as_deepspeed train.py --deepspeed ds.json
    accelerate launch -m dsengine.as_deepspeed train.py
    python -m dsengine.as_deepspeed -m some.module          # modules too

Every ``deepspeed.x`` is then the object that ``dsengine.x`` is. Programs that ask whether DeepSpeed
is installed, and in which release, are answered by metadata that names dsengine. Nothing is written
to disk: the act holds for this process. Raises ImportError where it comes too late.
"""

import runpy
import sys
from pathlib import Path

from dsengine.deepspeed.standing_in import stand_in

USAGE = "usage: python -m dsengine.as_deepspeed (SCRIPT | -m MODULE) [ARGS]..."


def main(arguments: list[str]) -> None:
    """Run a script, or a module behind ``-m``, as ``python`` would. Exits 2 without one."""
    is_module = arguments[:1] == ["-m"]
    program = arguments[1:] if is_module else arguments
    if not program or program[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        raise SystemExit(2)
    sys.argv = program
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


stand_in()

if __name__ == "__main__":
    main(sys.argv[1:])

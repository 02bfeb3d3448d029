"""The command of one rank as in DeepSpeed's launcher, with ``--local_rank``."""

import os
import sys

FLAGS = ("--module", "--no_python", "--no_local_rank")


def command(arguments: list[str], local_rank: str) -> list[str]:
    """Return the command line for a script that follows any of FLAGS."""
    flags: list[str] = []
    while arguments[0] in FLAGS:
        flags.append(arguments[0])
        arguments = arguments[1:]
    script, *rest = arguments
    local = [] if "--no_local_rank" in flags else [f"--local_rank={local_rank}"]
    if "--no_python" in flags:
        return [script, *local, *rest]
    module = ["-m"] if "--module" in flags else []
    python = [sys.executable, "-u", "-m", "dsengine.as_deepspeed"]
    return [*python, *module, script, *local, *rest]


if __name__ == "__main__":
    argv = command(sys.argv[1:], os.environ["LOCAL_RANK"])
    os.execvp(argv[0], argv)

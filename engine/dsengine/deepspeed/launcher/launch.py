"""One rank as DeepSpeed's launcher starts it: the script is given ``--local_rank``."""

import os
import sys

FLAGS = ("--module", "--no_python", "--no_local_rank")


def command(arguments: list[str], local_rank: str) -> list[str]:
    """Return the program and its arguments, of a script behind those of FLAGS that are given."""
    flags: list[str] = []
    while arguments[0] in FLAGS:
        flags.append(arguments[0])
        arguments = arguments[1:]
    script, *rest = arguments
    told = [] if "--no_local_rank" in flags else [f"--local_rank={local_rank}"]
    if "--no_python" in flags:
        return [script, *told, *rest]
    module = ["-m"] if "--module" in flags else []
    python = [sys.executable, "-u", "-m", "dsengine.as_deepspeed"]
    return [*python, *module, script, *told, *rest]


if __name__ == "__main__":
    words = command(sys.argv[1:], os.environ["LOCAL_RANK"])
    os.execvp(words[0], words)

"""The command of one rank as in DeepSpeed's launcher, with ``--local_rank``."""

import os
import sys
from collections.abc import Mapping

from dsengine.startup import child_environment

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
    return [sys.executable, "-u", *module, script, *local, *rest]


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Add the replacement and DeepSpeed's own variables to those of torchrun."""
    return {
        **child_environment(environment),
        "LOCAL_SIZE": environment["LOCAL_WORLD_SIZE"],
        "CROSS_RANK": environment["GROUP_RANK"],
        "CROSS_SIZE": environment["GROUP_WORLD_SIZE"],
    }


if __name__ == "__main__":
    argv = command(sys.argv[1:], os.environ["LOCAL_RANK"])
    try:
        os.execvpe(argv[0], argv, rank_environment(os.environ))
    except OSError as error:
        raise SystemExit(f"deepspeed: cannot run {argv[0]!r}: {error.strerror}") from None

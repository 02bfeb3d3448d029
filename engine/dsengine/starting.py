"""torchrun as `dsconfig run` starts it: ``python -m dsengine.starting LOG [torchrun's arguments]``.

What the launcher says of itself goes to the log; its ranks keep the standard error of the process.
How the first rank ended is told as an event, since its exit code says more than it can.
"""

import ctypes
import os
import signal
import sys

_SIGNAL_OF_PARENTS_END = 1
"""``PR_SET_PDEATHSIG`` of prctl(2)."""


def main() -> None:
    """Run the ranks; exit as the first of them that fails."""
    end_with_parent()
    log, *arguments = sys.argv[1:]
    # Before torch sets up its logging. Ranks inherit the descriptor, not this object.
    sys.stderr = open(log, "a", encoding="utf-8", buffering=1)  # noqa: PTH123, SIM115
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    from dsengine.observation.events import tell

    try:
        torchrun(arguments)
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        tell("ended", of=rank, how=_how(first.exitcode))
        print(error, file=sys.stderr)
        raise SystemExit(_exit_code(first.exitcode)) from None


def end_with_parent() -> None:
    """Be told with SIGTERM, where the system offers it, when the process that waits is killed."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_OF_PARENTS_END, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it was faster
        raise SystemExit(1)


def _exit_code(code: int) -> int:
    """That of a script, or what shells know a signal by."""
    return code if code >= 0 else 128 - code


def _how(code: int) -> str:
    """``was killed by SIGKILL``, or ``ended with exit code 3``."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


if __name__ == "__main__":
    main()

"""torchrun as `dsconfig run` starts it: ``python -m dsengine.starting LOG [torchrun's arguments]``.

What the launcher says of itself goes to the log; its ranks keep the standard error of the process.
How the first rank ended is told as an event, since its exit code says more than it can.
"""

import signal
import sys


def main() -> None:
    """Run the ranks; exit with 1 when one of them fails."""
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
        raise SystemExit(1) from None


def _how(code: int) -> str:
    """``was killed by SIGKILL``, or ``ended with exit code 3``."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


if __name__ == "__main__":
    main()

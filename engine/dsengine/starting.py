"""torchrun as `dsconfig run` starts it: ``python -m dsengine.starting LOG MEETING [arguments]``.

What the launcher says of itself goes to the log; its ranks keep the standard error of the process.
How the first rank ended is told as an event, since its exit code says more than it can.
MEETING is empty on one node; on several it is a :class:`dsengine.meeting.Meeting` as JSON, and the
arguments are for torchrun but for what follows from the plan that node 0 hands over.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from dsengine.meeting import Meeting

_SIGNAL_OF_PARENTS_END = 1
"""``PR_SET_PDEATHSIG`` of prctl(2)."""
_SECONDS_FOR_MORE_NODES = 10
"""How long nodes that are enough wait for others; all of them met before the first start."""
_SECONDS_WITHOUT_NODE_0 = 20.0
_SECONDS_BETWEEN_LOOKS = 5.0


def main() -> None:
    """Run the ranks; exit as the first of them that fails."""
    end_with_parent()
    log, meeting, *arguments = sys.argv[1:]
    # Before torch sets up its logging. Ranks inherit the descriptor, not this object.
    sys.stderr = open(log, "a", encoding="utf-8", buffering=1)  # noqa: PTH123, SIM115
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import (
        RendezvousConnectionError,
        RendezvousTimeoutError,
    )
    from torch.distributed.run import main as torchrun

    from dsengine.observation.events import emit

    if meeting:
        from dsconfig import launch_env
        from dsengine.meeting import Meeting, MeetingError, meet

        asked = Meeting(**json.loads(meeting))
        try:
            store = meet(asked)  # noqa: F841 - torchrun's rendezvous lives in it
            arguments = [*_among_nodes(asked), *arguments]
            if asked.rank != 0:
                threading.Thread(target=_end_without, args=(asked.endpoint,), daemon=True).start()
        except MeetingError as refused:
            emit("refused", why=str(refused))
            raise SystemExit(launch_env.REFUSED) from None
    else:
        arguments = ["--standalone", *arguments]
    try:
        torchrun(arguments)
    except (RendezvousConnectionError, RendezvousTimeoutError) as error:
        emit("refused", why=_without_rendezvous(meeting, error))
        raise SystemExit(1) from error
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        code = own_end(first)
        is_own = code >= 0
        killed = "" if is_own else f"was killed by {signal.Signals(-code).name}"
        emit("ended", of=rank, how=killed or f"ended with exit code {code}")
        print(error, file=sys.stderr)
        raise SystemExit(code if is_own else 128 - code) from None  # what shells know a signal by


def end_with_parent() -> None:
    """Be told with SIGTERM, where the system offers it, when the process that waits is killed."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_OF_PARENTS_END, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it was faster
        raise SystemExit(1)


def _end_without(endpoint: str) -> None:
    """End this launcher when its ranks have ended and node 0 cannot be reached any more.

    torch would ask the store there again and again, and wait for minutes each time. While there are
    ranks nothing is done: they notice by themselves, and may have something to save.
    """
    from dsconfig import launch_env
    from dsengine.observation.events import emit

    if sys.platform != "linux":  # which children live is not known
        return
    since = time.monotonic()
    while time.monotonic() - since < _SECONDS_WITHOUT_NODE_0:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        if launch_env.child_processes() or _is_reached(endpoint):
            since = time.monotonic()
    emit("refused", why=_gone(endpoint, "it does not answer"))
    os._exit(1)


def _is_reached(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _SECONDS_BETWEEN_LOOKS).close()
    except OSError:
        return False
    return True


def _gone(endpoint: str, why: object) -> str:
    return f"node 0 at {endpoint}, where the nodes meet, is gone, which ends the job: {why}"


def _among_nodes(asked: "Meeting") -> list[str]:
    """What torchrun has to know of the nodes, and of the plan."""
    ranks = asked.planned_ranks
    least = f"--nnodes={asked.nodes}"
    waits = ""
    if asked.is_elastic:
        ranks = asked.ranks or ranks
        least = f"--nnodes={asked.least}:{asked.nodes}"
        waits = f",last_call_timeout={_SECONDS_FOR_MORE_NODES}"
    is_host = "true" if asked.rank == 0 else "false"
    return [
        least,
        f"--nproc-per-node={ranks}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={asked.endpoint}",
        "--rdzv-id=dsconfig",
        f"--rdzv-conf=is_host={is_host},join_timeout={asked.seconds}{waits}",
    ]


def _without_rendezvous(meeting: str, error: Exception) -> str:
    endpoint = json.loads(meeting)["endpoint"] if meeting else "this machine"
    if "timed out" in str(error).lower() or not meeting:
        return f"the nodes did not come together at {endpoint}: {error}"
    return _gone(endpoint, error)


def own_end(failure: "ProcessFailure") -> int:
    """The exit code of a rank, or minus its signal, as it was before the launcher took part.

    Another rank may hear of an error and end before the rank that has raised it: the launcher then
    ends that one too, in the middle of its last words. The error that it has recorded is its end.
    """
    is_ended = failure.exitcode in (-signal.SIGTERM, -signal.SIGKILL)
    return 1 if is_ended and os.path.isfile(failure.error_file) else failure.exitcode  # noqa: PTH113


if __name__ == "__main__":
    main()

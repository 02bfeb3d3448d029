"""The process that ``dsconfig run`` starts on each node: rendezvous, then torchrun.

    python -m dsengine.torchrun_launcher LOG RENDEZVOUS [TORCHRUN_ARGUMENTS]

The launcher logs to LOG; its ranks inherit the standard error of the process. How the first rank
failed is reported as an event, because the exit code alone cannot distinguish all cases.
RENDEZVOUS is empty on one node; on several it is a :class:`dsengine.rendezvous.Rendezvous` as
JSON, and torchrun's arguments are completed from the plan that node 0 publishes.
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

from dsengine.stderr import print_error
from dsengine.torchrun import original_exit_code, shell_code

if TYPE_CHECKING:
    from dsengine.rendezvous import Rendezvous

_PR_SET_PDEATHSIG = 1
"""See prctl(2)."""
_LAST_CALL_SECONDS = 10
"""How long torchrun waits for more nodes once the minimum has joined."""
_NODE_0_TIMEOUT_SECONDS = 20.0
_POLL_SECONDS = 5.0


def main() -> None:
    """Run the ranks and exit with the code of the first one that failed."""
    end_with_parent()
    log, rendezvous, *arguments = sys.argv[1:]
    # Before torch sets up its logging. Ranks inherit the file descriptor, not this object.
    sys.stderr = open(log, "a", encoding="utf-8", buffering=1)  # noqa: PTH123, SIM115
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import (
        RendezvousConnectionError,
        RendezvousTimeoutError,
    )
    from torch.distributed.run import main as torchrun

    from dsengine.observation.events import emit
    from dsengine.stop_signals import address_main_threads

    address_main_threads()
    if rendezvous:
        from dsconfig import launch_env
        from dsengine.rendezvous import Rendezvous, RendezvousError, join

        spec = Rendezvous(**json.loads(rendezvous))
        try:
            store = join(spec)  # noqa: F841 - torchrun's rendezvous uses it
            arguments = [*_node_arguments(spec), *arguments]
            if spec.rank != 0:
                watchdog = threading.Thread(
                    target=_exit_without_node_0, args=(spec.endpoint,), daemon=True
                )
                watchdog.start()
        except RendezvousError as refused:
            emit("refused", why=str(refused))
            raise SystemExit(launch_env.REFUSED) from None
    else:
        arguments = ["--standalone", *arguments]
    try:
        torchrun(arguments)
    except (RendezvousConnectionError, RendezvousTimeoutError) as error:
        emit("refused", why=_rendezvous_failure(rendezvous, error))
        raise SystemExit(1) from error
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        code = original_exit_code(first)
        is_exit = code >= 0
        how = f"ended with exit code {code}" if is_exit else f"was killed by {_signal_name(-code)}"
        emit("ended", of=rank, how=how)
        print_error(error)
        raise SystemExit(shell_code(code)) from None


def _signal_name(number: int) -> str:
    return signal.Signals(number).name


def end_with_parent() -> None:
    """Request SIGTERM when the parent process is killed (Linux only)."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call
        raise SystemExit(1)


def _exit_without_node_0(endpoint: str) -> None:
    """Exit once this node's ranks have ended and node 0 is unreachable.

    torch would retry the store, with a timeout of minutes each time. Running ranks are not stopped:
    they detect the failure themselves and may have state to save.
    """
    from dsconfig import launch_env
    from dsengine.observation.events import emit

    if sys.platform != "linux":  # cannot list child processes
        return
    since = time.monotonic()
    while time.monotonic() - since < _NODE_0_TIMEOUT_SECONDS:
        time.sleep(_POLL_SECONDS)
        if launch_env.child_processes() or _is_reachable(endpoint):
            since = time.monotonic()
    emit("refused", why=_lost_node_0(endpoint, "no response"))
    os._exit(1)


def _is_reachable(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _POLL_SECONDS).close()
    except OSError:
        return False
    return True


def _lost_node_0(endpoint: str, why: object) -> str:
    return f"the job ends because node 0, which hosts the rendezvous at {endpoint}, is lost: {why}"


def _node_arguments(spec: "Rendezvous") -> list[str]:
    """Return torchrun's arguments that depend on the nodes and the plan."""
    ranks = spec.planned_ranks
    nodes = f"--nnodes={spec.nodes}"
    last_call = ""
    if spec.is_elastic:
        ranks = spec.ranks or ranks
        nodes = f"--nnodes={spec.min_nodes}:{spec.nodes}"
        last_call = f",last_call_timeout={_LAST_CALL_SECONDS}"
    is_host = "true" if spec.rank == 0 else "false"
    return [
        nodes,
        f"--nproc-per-node={ranks}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={spec.endpoint}",
        "--rdzv-id=dsconfig",
        f"--rdzv-conf=is_host={is_host},join_timeout={spec.seconds}{last_call}",
    ]


def _rendezvous_failure(rendezvous: str, error: Exception) -> str:
    endpoint = json.loads(rendezvous)["endpoint"] if rendezvous else "this machine"
    if "timed out" in str(error).lower() or not rendezvous:
        return f"rendezvous at {endpoint} failed: {error}"
    return _lost_node_0(endpoint, error)


if __name__ == "__main__":
    main()

"""Ranks of DeepSpeed's distributed tests, forked from a process that has imported everything.

DeepSpeed's own launcher imports everything again for each test, and waits minutes for a rank whose
peer has failed. Here the first failure ends a test.
"""

import os
import signal
import socket
import traceback
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from suite.limits import scaled

MAX_RANKS = 2
GRACE = 3.0
"""Seconds that other ranks have to report their failure after the first one."""
LIMIT = 150.0


class FailedInRankError(Exception):
    """The failure of a rank, as returned by ``failure_of``."""

    def __init__(self, failure: dict[str, Any]) -> None:
        super().__init__(f"{failure['type']}: {failure['message']}")
        self.failure = failure


def failure_of(error: BaseException) -> dict[str, Any]:
    """Return type, message and source lines of an error."""
    if isinstance(error, FailedInRankError):
        return error.failure
    kind = type(error)
    frames = traceback.extract_tb(error.__traceback__)
    places = [
        f"{frame.filename.rpartition(part)[2]}:{frame.lineno} {frame.name}: {frame.line}"
        for frame in frames
        for part in ("/dsengine/", "/dsconfig/", "/tests/unit/", "/deepspeed/")
        if part in frame.filename
    ]
    return {
        "type": f"{kind.__module__}.{kind.__name__}",
        "message": str(error)[:3000],
        "places": places[-6:],
    }


def launch(test: Any, count: int, init_method: str) -> None:
    """Run a distributed test on ``count`` ranks; replaces its own ``_launch_procs``."""
    import pytest

    if count > MAX_RANKS:
        pytest.skip(f"needs {count} ranks")
    port = _free_port()
    started: dict[Connection, int] = {}
    for rank in range(count):
        here, there = Pipe()
        if (process := os.fork()) == 0:
            _rank(test, rank, count, port, init_method, there)
        there.close()
        started[here] = process
    try:
        _watch(started)
    finally:
        for process in started.values():
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _watch(started: dict[Connection, int]) -> None:
    import pytest

    running, failures = set(started), list[dict[str, Any]]()
    skipped: Any = ""
    while running:
        ready = wait(list(running), scaled(GRACE if failures else LIMIT))
        if not ready:
            break
        for connection in ready:
            assert isinstance(connection, Connection)
            running.discard(connection)
            try:
                kind, result = connection.recv()
            except EOFError:
                kind, result = "failed", {"type": "Died", "message": "a rank died", "places": []}
            if kind == "failed":
                failures.append(result)
            skipped = skipped or (result if kind == "skipped" else "")
    if failures:
        raise FailedInRankError(failures[0])
    if running:
        message = f"ranks had not ended after {scaled(LIMIT):.0f} s"
        raise FailedInRankError({"type": "Hang", "message": message, "places": []})
    if skipped:
        pytest.skip(skipped)


def _rank(
    test: Any, rank: int, count: int, port: int, init_method: str, parent: Connection
) -> None:
    """Run a rank; never returns. Waits to be killed, so that its peers can finish."""
    try:
        skipped = test._dist_run(rank, count, port, init_method)
        parent.send(("skipped", skipped) if skipped else ("passed", None))
    except BaseException as error:
        parent.send(("failed", failure_of(error)))
    signal.pause()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])

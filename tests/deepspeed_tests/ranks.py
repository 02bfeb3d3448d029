"""The ranks of one of DeepSpeed's tests: forked from the process that has imported everything.

Its own launcher starts and imports anew for each test, and waits minutes for a rank whose peer has
failed. Here the first failure ends a test.
"""

import os
import signal
import socket
import traceback
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

MOST_RANKS = 2
GRACE = 3.0
"""Seconds that ranks have to tell of their own failure after the first one."""
LIMIT = 150.0


class FailedInRankError(Exception):
    """What ended a rank: a failure as ``failure_of`` tells it."""

    def __init__(self, failure: dict[str, Any]) -> None:
        super().__init__(f"{failure['type']}: {failure['message']}")
        self.failure = failure


def failure_of(error: BaseException) -> dict[str, Any]:
    """Kind, words and places of an error."""
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
    """Run a distributed test of ``count`` ranks; stands in for its own ``_launch_procs``."""
    import pytest

    if count > MOST_RANKS:
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

    open_ones, failures = set(started), list[dict[str, Any]]()
    skipped: Any = ""
    while open_ones:
        ready = wait(list(open_ones), GRACE if failures else LIMIT)
        if not ready:
            break
        for each in ready:
            assert isinstance(each, Connection)
            open_ones.discard(each)
            try:
                kind, told = each.recv()
            except EOFError:
                kind, told = "failed", {"type": "Died", "message": "a rank died", "places": []}
            if kind == "failed":
                failures.append(told)
            skipped = skipped or (told if kind == "skipped" else "")
    if failures:
        raise FailedInRankError(failures[0])
    if open_ones:
        words = f"ranks had not ended after {LIMIT:.0f} s"
        raise FailedInRankError({"type": "Hang", "message": words, "places": []})
    if skipped:
        pytest.skip(skipped)


def _rank(
    test: Any, rank: int, count: int, port: int, init_method: str, parent: Connection
) -> None:
    """Never returns. Stays until it is killed, so that its peers can end what they do with it."""
    try:
        skipped = test._dist_run(rank, count, port, init_method)
        parent.send(("skipped", skipped) if skipped else ("passed", None))
    except BaseException as error:
        parent.send(("failed", failure_of(error)))
    signal.pause()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])

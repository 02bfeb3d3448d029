"""Waiting in tests for what other threads and processes do."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Timer
from typing import IO

from suite.limits import scaled


def until(what: str, holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until ``holds``; fail after the scaled ``seconds``, naming ``what``."""
    limit = scaled(seconds)
    end = time.monotonic() + limit
    while not holds():
        assert time.monotonic() < end, f"{what}: not in {limit:.0f} s"
        time.sleep(0.02)


def lines_until(
    text: str, process: "subprocess.Popen[str]", stream: IO[str] | None, seconds: float = 60.0
) -> list[str]:
    """Read lines of a process up to the one that contains ``text``; fail if it does not come.

    The process is killed after the scaled ``seconds``.
    """
    assert stream is not None
    lines: list[str] = []
    limit = Timer(scaled(seconds), process.kill)
    limit.start()
    try:
        while line := stream.readline():
            lines.append(line)
            if text in line:
                return lines
    finally:
        limit.cancel()
        limit.join()
    raise AssertionError(f"no line with {text!r}, after {''.join(lines)!r}")


def completed(
    command: Sequence[str], environment: Mapping[str, str], seconds: float
) -> "subprocess.CompletedProcess[str]":
    """Run a command; what it has started is killed when it ends, and after the scaled seconds."""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            output, errors = started.communicate(timeout=scaled(seconds))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, started.returncode, output, errors)

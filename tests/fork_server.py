"""Processes forked from one that has imported modules, one per request."""

import array
import atexit
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

LONGEST_REQUEST = 2**20
"""Bytes of the arguments and environment of a program, as JSON."""
COVERAGE = "COVERAGE_PROCESS_START"
"""Variable with which coverage.py measures a process from its start."""


class ForkServer:
    """A process that runs ``MODULE.serve(DESCRIPTOR, ARGUMENTS)``, which calls ``answer``."""

    def __init__(self, module: str, *arguments: object) -> None:
        self.socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_REQUEST)
        with its:
            given = ", ".join(map(repr, (its.fileno(), *arguments)))
            folders = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"import {module}; {module}.serve({given})"],
                pass_fds=[its.fileno()],
                env={**_unmeasured(os.environ), "PYTHONPATH": os.pathsep.join(folders)},
            )
        atexit.register(self.close)

    def call(self, request: Mapping[str, Any], streams: list[int]) -> int:
        """Run a program with these standard streams and return its exit code, negative for a
        signal.

        It is killed if this call is interrupted, for example by the time limit of a test.
        """
        socket.send_fds(self.socket, [json.dumps(request).encode()], streams)
        process = self._received()
        try:
            return self._received()
        except BaseException:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            self._received()  # so that the next answer is that of the next request
            raise

    def completed(
        self, request: Mapping[str, Any], typed: bytes = b""
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program with this standard input and return its output as text."""
        with TemporaryFile() as stdin, TemporaryFile() as out, TemporaryFile() as err:
            stdin.write(typed)
            stdin.seek(0)
            code = self.call(request, [stream.fileno() for stream in (stdin, out, err)])
            texts: list[str] = []
            for stream in (out, err):
                stream.seek(0)
                texts.append(stream.read().decode("utf-8", "backslashreplace"))
        return subprocess.CompletedProcess(request["arguments"], code, *texts)

    def close(self) -> None:
        self.socket.close()
        self.process.wait()

    def _received(self) -> int:
        answer = self.socket.recv(64)
        if not answer:
            raise RuntimeError(f"the fork server ended with {self.process.wait()}")
        return int(answer)


def answer(number: int, execute: Callable[[list[str]], NoReturn]) -> None:
    """Fork a process per request until the socket closes.

    It calls ``execute`` with the arguments, in the folder and environment of the request.
    """
    with socket.socket(fileno=number) as requests:
        while True:
            message, streams, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, 3)
            if not message:
                return
            child = os.fork()
            if child == 0:
                requests.close()
                for standard, stream in enumerate(array.array("i", streams).tolist()):
                    os.dup2(stream, standard)
                    os.close(stream)
                _open_standard_streams()
                request = json.loads(message)
                os.chdir(request["folder"])
                os.environ.clear()
                os.environ.update(request["environment"])
                _record_coverage()
                execute(request["arguments"])
            for stream in streams:
                os.close(stream)
            requests.send(str(child).encode())
            _, status = os.waitpid(child, 0)
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())


def _unmeasured(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without coverage, which each forked process records for its test."""
    return {name: value for name, value in environment.items() if name != COVERAGE}


def _record_coverage() -> None:
    if COVERAGE in os.environ:
        import coverage

        coverage.process_startup(force=True)


def _open_standard_streams() -> None:
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")  # type: ignore[arg-type]
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8")
        for number in (1, 2)
    )

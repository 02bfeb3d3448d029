"""Run ``dsconfig`` as a process of its own, forked from one that has imported its modules.

Imports take most of the time of a short command; a fork shares them. Standard streams, working
directory, environment and exit code are those of a new process.
"""

import array
import atexit
import importlib
import io
import json
import os
import pkgutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any

import dsconfig

Done = subprocess.CompletedProcess[str]
LONGEST_REQUEST = 2**20
"""Bytes of the arguments and environment of a command, as JSON."""


def run(
    *arguments: object,
    cwd: Path | None = None,
    stdin: str | bytes = b"",
    columns: int = 120,
    environment: Mapping[str, str | None] = MappingProxyType({}),
) -> Done:
    """Run ``dsconfig`` with these arguments and return its output as text.

    ``environment`` adds variables; None removes one.
    """
    variables: dict[str, str | None] = {**os.environ, "COLUMNS": str(columns), **environment}
    request = {
        "arguments": [*map(str, arguments)],
        "folder": str(cwd or Path.cwd()),
        "environment": {name: value for name, value in variables.items() if value is not None},
    }
    with TemporaryFile() as typed, TemporaryFile() as out, TemporaryFile() as err:
        typed.write(stdin.encode() if isinstance(stdin, str) else stdin)
        typed.seek(0)
        streams = [stream.fileno() for stream in (typed, out, err)]
        code = _server().call(request, streams)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "backslashreplace"))
    return subprocess.CompletedProcess(request["arguments"], code, *texts)


class _Server:
    """A process that forks one command per request."""

    def __init__(self) -> None:
        self.socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_REQUEST)
        with its:
            code = f"import command_line; command_line.serve({its.fileno()})"
            folders = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[its.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
            )
        atexit.register(self.close)

    def call(self, request: Mapping[str, Any], streams: list[int]) -> int:
        """Run a command and return its exit code, negative for a signal."""
        socket.send_fds(self.socket, [json.dumps(request).encode()], streams)
        answer = self.socket.recv(64)
        if not answer:
            raise RuntimeError(f"the command server ended with {self.process.wait()}")
        return int(answer)

    def close(self) -> None:
        self.socket.close()
        self.process.wait()


@cache
def _server() -> _Server:
    return _Server()


def serve(number: int) -> None:
    """Import every module of dsconfig, then fork a command per request until the socket closes."""
    import_everything()
    with socket.socket(fileno=number) as requests:
        while True:
            message, streams, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, 3)
            if not message:
                return
            child = os.fork()
            if child == 0:
                requests.close()
                _execute(json.loads(message), array.array("i", streams).tolist())
            for stream in streams:
                os.close(stream)
            _, status = os.waitpid(child, 0)
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())


def import_everything() -> None:
    for module in pkgutil.walk_packages(dsconfig.__path__, "dsconfig."):
        if not module.name.endswith("__main__"):
            # A deferred module is executed when an attribute is read.
            getattr(importlib.import_module(module.name), "anything", None)


def _execute(request: Mapping[str, Any], streams: list[int]) -> None:
    """Run one command in this process, which ends with it."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), "utf-8")  # type: ignore[arg-type]
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8")
        for number in (1, 2)
    )
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["dsconfig", *request["arguments"]]
    sys.path[0] = ""
    from dsconfig.__main__ import program

    try:
        program()
    except SystemExit as error:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.code if isinstance(error.code, int) else 0)
    os._exit(0)

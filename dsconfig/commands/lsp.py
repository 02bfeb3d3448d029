"""``dsconfig lsp``: the language server for editors."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, BinaryIO

import typer

from dsconfig.facts.naming import Surface, read_on
from dsconfig.project.errors import UsageError

LONGEST_HEADER = 4096
MOST_DIGITS = 8
"""Digits of the length of a message; its bytes are read into memory."""
INSTALL = 'pip install "dsconfig-zero[lsp]"'


def lsp(
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Communicate over stdin and stdout, as it always does.")
    ] = False,
) -> None:
    """Run the language server: findings while typing, hover, completion, fixes.

    Editors start it and talk to it over stdin and stdout. It reads the settings of the project from
    [tool.dsconfig] in pyproject.toml.
    """
    if find_spec("pygls") is None:
        raise UsageError(f"lsp requires pygls, which is not installed: {INSTALL}")
    # Imported by name because the package is optional.
    server = import_module("dsconfig.editor.server").create()
    with read_on(Surface.SETTINGS):
        server.start_io(_Messages(sys.stdin.buffer))
    raise typer.Exit(server.exit_code)


class _Messages:
    """Standard input, which ends at a header or a message longer than an editor sends."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        line = self._stream.readline(LONGEST_HEADER)
        name, _, value = line.partition(b":")
        is_absurd = name.lower() == b"content-length" and len(value.strip()) > MOST_DIGITS
        return b"" if is_absurd or not line.endswith(b"\n") else line

    def read(self, size: int) -> bytes:
        return self._stream.read(size)

"""Bytes from a file, a pipe or standard input, and why there are none."""

import errno
import sys
from pathlib import Path
from typing import NamedTuple

from dsconfig.report import Diagnostic
from dsconfig.source import findings

LARGEST_BYTES = 64 * 2**20
"""Inputs above this size (64 MiB) are refused; a ds_config has some kilobytes."""

WORDS = {
    errno.ENOENT: ("there is no such file", "check the path"),
    errno.ENOTDIR: ("there is no such file", "check the path"),
    errno.EACCES: ("you may not read this file", "give yourself read permission"),
    errno.EPERM: ("you may not read this file", "give yourself read permission"),
    errno.ELOOP: ("this is a link that leads to itself", "name the file itself"),
    errno.ENAMETOOLONG: ("this is too long to be a file name", "check the path"),
}


class Text(NamedTuple):
    """Text that was found. ``has_mark`` says that a byte order mark was taken off."""

    content: str
    has_mark: bool = False


def read_path(path: Path) -> Text | Diagnostic:
    """The text of a file, or the one finding that says why there is none."""
    try:
        if path.is_dir():
            message = "this is a directory, not a config"
            return findings.unreadable(message, "name a file in it, or validate it whole")
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        return _failure(error)
    return decode(data)


def read_stdin() -> Text | Diagnostic:
    """The text on standard input."""
    try:
        return decode(sys.stdin.buffer.read(LARGEST_BYTES + 1))
    except (OSError, ValueError, AttributeError) as error:
        return _failure(error)


def decode(data: bytes) -> Text | Diagnostic:
    """UTF-8 text without its byte order mark."""
    if len(data) > LARGEST_BYTES:
        limit = LARGEST_BYTES // 2**20
        message = f"this is larger than {limit} MiB, so it is no config"
        return findings.unreadable(message, "name the config itself")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return _not_text(data, error)
    mark = text.startswith("\ufeff")
    return Text(text[1:] if mark else text, has_mark=mark)


def _not_text(data: bytes, error: UnicodeDecodeError) -> Diagnostic:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        message = "this is UTF-16 text; DeepSpeed reads UTF-8 only and stops"
        return findings.unreadable(message, "save the file as UTF-8")
    line = data.count(b"\n", 0, error.start) + 1
    message = f"this is not UTF-8 text: byte 0x{data[error.start]:02x} on line {line}"
    return findings.unreadable(message, "name a text file, or save it as UTF-8")


def _failure(error: Exception) -> Diagnostic:
    number = error.errno if isinstance(error, OSError) else None
    message, help = WORDS.get(number or 0, (f"this cannot be read: {error}", "check the path"))
    return findings.unreadable(message, help)

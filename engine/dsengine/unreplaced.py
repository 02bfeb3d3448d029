"""Detection of processes that the start-up hook does not reach (Linux).

A program may replace PYTHONPATH, or start Python with ``-I``, ``-E`` or ``-S``. Such a process
imports the installed DeepSpeed. The command ``dsengine`` leaves a watcher behind that looks for
them below the program: Python processes that have loaded torch, but not the hook. They are
reported, and terminated if dsengine is required.
"""

import os
import select
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dsconfig import launch_env
from dsengine.startup import MODE, REQUIRED, has_hook
from dsengine.stderr import print_error

_FIRST_INTERVAL_SECONDS, _LAST_INTERVAL_SECONDS = 0.5, 5.0
_TORCH = b"/libtorch_python."
"""Part of the path of a library that every Python process with torch has loaded."""
_REPLACING = {"dsengine.as_deepspeed", "dsengine.with_deepspeed"}
"""Modules that run a program and choose its engine themselves."""


class Unreplaced(NamedTuple):
    """A process without the hook."""

    pid: int
    words: list[str]
    """Its command line."""
    reason: str

    def __str__(self) -> str:
        return f"process {self.pid} ({' '.join(self.words[:4])}): {self.reason}"


def start_watching(*, required: bool) -> None:
    """Watch the processes below this one from a detached process until this one ends.

    Does nothing where processes cannot be watched.
    """
    if sys.platform != "linux" or not Path("/proc/self/stat").exists():
        return
    root = os.getpid()
    try:
        descriptor = os.pidfd_open(root)
    except OSError:  # an old kernel
        return
    child = os.fork()
    if child:
        os.close(descriptor)
        os.waitpid(child, 0)
        return
    with suppress(BaseException):
        os.setsid()
        if not os.fork():
            _close_all_but(descriptor)
            _watch(root, descriptor, required)
    os._exit(0)


def _close_all_but(descriptor: int) -> None:
    """Keep only the descriptor and standard error: a pipe to this process must be able to end."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))


def _watch(root: int, descriptor: int, required: bool) -> None:
    """Report each process without the hook once, until the process of ``descriptor`` ends."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    reported: set[int] = set()
    seconds = _FIRST_INTERVAL_SECONDS
    while not poll.poll(1000 * seconds):
        for each in unreplaced(root):
            if each.pid not in reported:
                reported.add(each.pid)
                report(each, required)
        seconds = min(1.2 * seconds, _LAST_INTERVAL_SECONDS)


def report(process: Unreplaced, required: bool) -> None:
    """Print a warning; if dsengine is required, an error, and terminate the process."""
    kind = "error" if required else "warning"
    end = f"; terminated ({MODE}={REQUIRED})" if required else ""
    text = f"dsengine: {kind}: deepspeed is not replaced in {process}{end}"
    with suppress(OSError):
        print_error(text)
    if required:
        with suppress(OSError):
            os.kill(process.pid, signal.SIGTERM)


def unreplaced(root: int) -> Iterator[Unreplaced]:
    """Yield the processes below ``root`` that have loaded torch without the hook."""
    for pid in _below(root):
        folder = Path(f"/proc/{pid}")
        with suppress(OSError):  # it has ended, or belongs to another user
            environment = dict(_variables(_strings(folder / "environ")))
            words = _strings(folder / "cmdline")
            reason = _reason(environment, words)
            if reason and not _REPLACING & set(words) and _has_torch(folder / "maps"):
                yield Unreplaced(pid, words, reason)


def _below(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in launch_env.parents().items():
        children.setdefault(parent, []).append(pid)
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        yield pid


def _strings(path: Path) -> list[str]:
    return os.fsdecode(path.read_bytes()).rstrip("\0").split("\0")


def _variables(strings: Iterable[str]) -> Iterator[tuple[str, str]]:
    for each in strings:
        name, _, value = each.partition("=")
        yield name, value


def _reason(environment: dict[str, str], words: list[str]) -> str | None:
    if not has_hook(environment):
        return "its PYTHONPATH lacks dsengine's folder; extend PYTHONPATH instead of replacing it"
    if option := isolating_option(words):
        return f"Python's option -{option} disables dsengine's start-up hook"
    return None


def isolating_option(words: list[str]) -> str | None:
    """Return the first of Python's options -I, -E and -S in a command line."""
    options = iter(words[1:])
    for word in options:
        if not word.startswith("-") or word == "-":
            return None
        for index, letter in enumerate(word[1:], 2):
            if letter in "IES":
                return letter
            if letter in "cm-":  # what follows belongs to the program; long options have a value
                return None
            if letter in "WX":
                if not word[index:]:
                    next(options, None)
                break
    return None


def _has_torch(maps: Path) -> bool:
    return _TORCH in maps.read_bytes()

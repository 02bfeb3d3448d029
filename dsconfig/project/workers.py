"""Processes that check files for this one.

[Note: worker processes] A terminal sends Ctrl-C to every process of the group. Workers ignore it,
so that this process alone handles it, and stops them. While workers are forked, Ctrl-C is held
back: a worker could not ignore it yet, and Python drops exceptions in the hooks of a fork. A worker
whose parent has died of another signal exits by itself.
"""

import copyreg
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from dsconfig.facts import naming
from dsconfig.project.errors import UsageError
from dsconfig.project.neighbours import Neighbours
from dsconfig.project.targets import Target
from dsconfig.project.validator import Validator
from dsconfig.report import FileReport

CHUNK = 16
"""Most files per message to a worker."""
MOST_WORKERS = 60
"""Windows waits for at most 63 handles."""


def _read_only(content: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(content)


def _reduced(proxy: MappingProxyType[Any, Any]) -> tuple[Any, ...]:
    return _read_only, (dict(proxy),)


copyreg.pickle(MappingProxyType, _reduced)  # facts contain read-only mappings


class CheckError(RuntimeError):
    """An exception in a worker, as text: not every exception can be sent to another process."""


@contextmanager
def reports(
    files: Sequence[Target], validator: Validator, jobs: int
) -> Generator[Iterator[FileReport]]:
    """Start ``jobs`` workers; yield their reports, in the order of the files.

    Stops the workers on exit. The iterator raises what a worker raises (CheckError unless it is a
    mistake of the user), and CheckError if a worker is killed.
    """
    # A fork shares the imported modules; elsewhere it is not safe, or does not exist.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    jobs = min(jobs, len(files), MOST_WORKERS)
    chunk = max(1, min(CHUNK, len(files) // jobs))
    pool = ProcessPoolExecutor(jobs, context, _start, (validator, naming.current()))
    try:
        yield _checked(pool, files, chunk)
    except BaseException:
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _checked(
    pool: ProcessPoolExecutor, files: Sequence[Target], chunk: int
) -> Iterator[FileReport]:
    try:
        with _interrupts_held():
            checked = pool.map(_check, files, chunksize=chunk)
        yield from checked
    except BrokenProcessPool:
        raise CheckError("a worker process was killed (out of memory?); try --jobs 1") from None


@contextmanager
def _interrupts_held() -> Generator[None]:
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where nothing is forked
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_validator: list[Validator] = []
"""The validator of a worker."""


def _start(validator: Validator, surface: naming.Surface) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    naming.use(surface)
    _validator[:] = [validator._replace(neighbours=Neighbours())]


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _check(target: Target) -> FileReport:
    (validator,) = _validator
    try:
        return validator.check(target)
    except (UsageError, OSError):
        raise
    except Exception:
        raise CheckError(f"{target.name}\n{traceback.format_exc()}") from None

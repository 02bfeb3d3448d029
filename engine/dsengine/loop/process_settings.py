"""What an engine changes in its process: threads, log levels, garbage collection."""

import gc
import logging
import os
from collections.abc import Callable
from typing import Any
from weakref import finalize

import torch

from dsconfig import Effective, launch_env
from dsengine.observation.printing import logger, print_rank0, script_logger


class _Setting:
    """A value of the process: the last one requested, or else the one from before."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        self._read, self._write = read, write
        self._before: Any = None
        self._requested: dict[object, Any] = {}

    def request(self, owner: object, value: Any) -> None:
        if not self._requested:
            self._before = self._read()
        self._requested[owner] = value
        self._write(value)

    def release(self, owner: object) -> None:
        """Drop the request of ``owner``, unless a script has changed the value since."""
        if owner not in self._requested:
            return
        is_unchanged = self._read() == [*self._requested.values()][-1]
        del self._requested[owner]
        if is_unchanged:
            self._write([self._before, *self._requested.values()][-1])


def _set_levels(levels: tuple[Any, Any]) -> None:
    logger.setLevel(levels[0])
    script_logger.setLevel(levels[1])


THREADS = _Setting(lambda: torch.get_num_threads(), lambda count: torch.set_num_threads(count))
LEVELS = _Setting(lambda: (logger.level, script_logger.level), _set_levels)
COLLECTION = _Setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable())


class ProcessSettings:
    """The settings of one engine, in force until ``restore`` or the engine is freed."""

    def __init__(self, effective: Effective) -> None:
        owner = object()
        level = effective.reporting.log_level
        if level is not None:
            LEVELS.request(owner, (logging.getLevelNamesMapping()[level.upper()],) * 2)
        if effective.disable_python_gc:
            COLLECTION.request(owner, False)
        if effective.zero.offload_optimizer is not None:
            use_all_cores(owner)
        self.restore = finalize(self, _release, owner)
        self.restore.atexit = False


def _release(owner: object) -> None:
    for setting in (THREADS, LEVELS, COLLECTION):
        setting.release(owner)


def use_all_cores(owner: object) -> None:
    """Divide the host's cores among its ranks if the launcher has set the number of threads.

    One thread per rank, torchrun's default, updates weights and sums gradients several times slower
    than memory allows. A number that the user has set, or any without a launcher of dsconfig or
    dsengine, remains.
    """
    if launch_env.DEFAULT_THREADS not in os.environ:
        return
    cores, ranks = _cores(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = max(1, cores // ranks)
    is_changed = threads != torch.get_num_threads()
    THREADS.request(owner, threads)  # in any case: another engine may release the same number
    if is_changed:
        print_rank0(
            f"the optimizer is offloaded: each rank uses {threads} threads ({cores} cores, {ranks} "
            f"ranks per host); set {launch_env.THREADS} for another number"
        )


def _cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

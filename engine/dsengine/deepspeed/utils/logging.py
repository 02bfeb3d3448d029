"""Lines of a script: one logger, and messages from chosen ranks only."""

import logging
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch.distributed as dist

from dsengine.observation.printing import script_logger

FORMAT = "[%(asctime)s] [%(levelname)s] %(message)s"


class _StandardOutput(logging.StreamHandler[Any]):
    """Writes to what is standard output when the line comes, not when the handler was made."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)

    @property
    def stream(self) -> Any:
        return sys.stdout

    @stream.setter
    def stream(self, value: Any) -> None:
        del value


logger = script_logger
"""Of INFO and above, on standard output; left alone where logging is set up already."""
if not logger.handlers:
    _handler = _StandardOutput()
    _handler.setFormatter(logging.Formatter(FORMAT))
    logger.addHandler(_handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def log_dist(
    message: object, ranks: Sequence[int] | None = None, level: int = logging.INFO
) -> None:
    """Log ``message`` on the named ranks: [-1] is all of them, none named is none.

    Before a process group exists, every process logs.
    """
    if _speaks(ranks):
        logger.log(level, "[Rank %d] %s", _rank(), message)


def print_dist(message: object, ranks: Sequence[int] | None = None) -> None:
    """Print ``message`` on the named ranks, as ``log_dist`` chooses them."""
    if _speaks(ranks):
        print(f"[Rank {_rank()}] {message}", flush=True)


def set_log_level_from_string(
    log_level_str: str, custom_logger: logging.Logger | None = None
) -> None:
    """Let a logger, this one if none is given, print from the level of that name up.

    Raises ValueError for a name that is none of ``debug`` to ``critical``.
    """
    level = logging.getLevelNamesMapping().get(log_level_str.upper())
    if level is None:
        raise ValueError(f"{log_level_str!r} is no level: debug, info, warning, error or critical")
    chosen = logger if custom_logger is None else custom_logger
    chosen.setLevel(level)
    for handler in chosen.handlers:
        handler.setLevel(level)


@cache
def warning_once(message: str) -> None:
    """Warn, but only the first time that this is the message."""
    logger.warning(message)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else -1


def _speaks(ranks: Sequence[int] | None) -> bool:
    return not dist.is_initialized() or -1 in (ranks or ()) or dist.get_rank() in (ranks or ())


__all__ = ["log_dist", "logger", "print_dist", "set_log_level_from_string", "warning_once"]

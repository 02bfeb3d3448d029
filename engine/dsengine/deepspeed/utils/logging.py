"""The scripts' logger, and messages from selected ranks only."""

import logging
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch.distributed as dist

from dsengine.observation.printing import script_logger
from dsengine.topology import rank

FORMAT = "[%(asctime)s] [%(levelname)s] %(message)s"


class _StandardOutput(logging.StreamHandler[Any]):
    """Writes to the current standard output, not that at creation."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)

    @property
    def stream(self) -> Any:
        return sys.stdout

    @stream.setter
    def stream(self, value: Any) -> None:
        del value


logger = script_logger
"""Logs INFO and above to standard output; unchanged if logging is already configured."""
if not logger.handlers:
    _handler = _StandardOutput()
    _handler.setFormatter(logging.Formatter(FORMAT))
    logger.addHandler(_handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def log_dist(
    message: object, ranks: Sequence[int] | None = None, level: int = logging.INFO
) -> None:
    """Log ``message`` on the given ranks: [-1] means all of them, None or [] none.

    Without a process group, every process logs.
    """
    if _is_selected(ranks):
        logger.log(level, "[Rank %d] %s", _rank(), message)


def print_dist(message: object, ranks: Sequence[int] | None = None) -> None:
    """Print ``message`` on the given ranks, selected as by ``log_dist``."""
    if _is_selected(ranks):
        print(f"[Rank {_rank()}] {message}", flush=True)


def set_log_level_from_string(
    log_level_str: str, custom_logger: logging.Logger | None = None
) -> None:
    """Set the level of a logger (default: this one) by name.

    Raises ValueError unless it is one of ``debug`` to ``critical``.
    """
    level = logging.getLevelNamesMapping().get(log_level_str.upper())
    if level is None:
        raise ValueError(f"{log_level_str!r}: use debug, info, warning, error or critical")
    target = logger if custom_logger is None else custom_logger
    target.setLevel(level)
    for handler in target.handlers:
        handler.setLevel(level)


@cache
def warning_once(message: str) -> None:
    """Log a warning, only once per message."""
    logger.warning(message)


def _rank() -> int:
    return rank() if dist.is_initialized() else -1


def _is_selected(ranks: Sequence[int] | None) -> bool:
    return not dist.is_initialized() or -1 in (ranks or ()) or rank() in (ranks or ())


__all__ = ["log_dist", "logger", "print_dist", "set_log_level_from_string", "warning_once"]

"""The scripts' logger, and messages from selected ranks only."""

import logging
from collections.abc import Sequence
from functools import cache

import torch.distributed as dist

from dsengine.observation.printing import configure_script_logger, script_logger
from dsengine.topology import rank

logger = script_logger
"""Logs INFO and above to standard output; unchanged if logging is already configured."""
configure_script_logger()


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

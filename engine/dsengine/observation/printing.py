"""Messages to the user: from rank 0 to stderr, and the logger of scripts."""

import logging
import sys
from functools import cache
from typing import Any

import torch.distributed as dist

from dsengine.stderr import print_error

logger = logging.getLogger("dsengine")
script_logger = logging.getLogger("dsengine.script")
"""The logger scripts import from ``deepspeed.utils``, which configures it."""
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


def configure_script_logger() -> None:
    """Log INFO and above to standard output, unless logging is already configured."""
    if not script_logger.handlers:
        handler = _StandardOutput()
        handler.setFormatter(logging.Formatter(FORMAT))
        script_logger.addHandler(handler)
        script_logger.setLevel(logging.INFO)
        script_logger.propagate = False


@cache
def log_replacement(release: str) -> None:
    """Log on every rank, once, that dsengine replaces DeepSpeed.

    Frameworks raise the logger's level to WARNING; this line is for every run.
    """
    configure_script_logger()
    message = "[Rank %d] dsengine replaces deepspeed (%s)"
    details = (dist.get_rank(), release)
    script_logger.handle(
        script_logger.makeRecord(
            script_logger.name, logging.INFO, __file__, 0, message, details, None
        )
    )


def print_rank0(message: str) -> None:
    """Print one line to stderr, on rank 0 only."""
    if dist.get_rank() == 0:
        print_error(f"dsengine: {message}")

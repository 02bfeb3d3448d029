"""Messages to the user, from rank 0."""

import logging
import sys

import torch.distributed as dist

logger = logging.getLogger("dsengine")
script_logger = logging.getLogger("dsengine.script")
"""The logger scripts import from ``deepspeed.utils``, which configures it."""


def print_rank0(message: str) -> None:
    """Print one line to stderr, on rank 0 only."""
    if dist.get_rank() == 0:
        print(f"dsengine: {message}", file=sys.stderr, flush=True)

"""Lines for a person; rank 0 speaks."""

import logging
import sys

import torch.distributed as dist

logger = logging.getLogger("dsengine")
script_logger = logging.getLogger("dsengine.script")
"""What scripts import from ``deepspeed.utils``, which sets it up; nobody hears it before."""


def print_rank0(message: str) -> None:
    """Print one line on standard error, on rank 0 only."""
    if dist.get_rank() == 0:
        print(f"dsengine: {message}", file=sys.stderr, flush=True)

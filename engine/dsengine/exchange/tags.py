"""Where pieces can be exchanged, and how they are told from other messages."""

import torch
import torch.distributed as dist

GATHER, REDUCE = 0x2E20, 0x2E21
"""Tags that keep the pieces apart from what a script sends between the same ranks."""


def can_exchange(group: dist.ProcessGroup | None, device: torch.device) -> bool:
    """Whether gloo carries the tensors of ``device`` in ``group``."""
    return group is not None and device.type == "cpu" and dist.get_backend(group) == "gloo"

"""Main memory for states: where it comes from."""

from collections.abc import Sequence

import torch
from torch import Tensor


def empty_on_host(shape: Sequence[int], *, pin: bool) -> Tensor:
    """Return (*shape,) fp32 elements of undefined value in main memory, page-locked if ``pin``."""
    return torch.empty(shape, dtype=torch.float32, device="cpu", pin_memory=pin)

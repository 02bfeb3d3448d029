"""Adding gradients to sums on the host, at the speed of its memory.

[Note: chunks]
An addition of two dtypes on the CPU first converts one operand as a whole: a temporary twice the
size of a 16-bit gradient, slower than the addition itself. So sums are updated in chunks that stay
in the processor's cache, with buffers that each thread keeps.
"""

import threading

import torch
from torch import Tensor

from dsengine.torch_private.dry_runs import is_fake

CHUNK_ELEMENTS = 2**16
"""Elements at a time and thread of an operation; more of them per core would leave the cache."""
MOST_THREADS = 16

_buffers = threading.local()


@torch.no_grad()
def accumulate(total: Tensor, gradient: Tensor, rounding: torch.dtype, *, is_first: bool) -> None:
    """Add ``gradient`` to ``total``, or replace it if ``is_first``.

    The sum is rounded to the precision of ``rounding``; ``total`` has been before.
    """
    narrows = rounding is not total.dtype
    if is_first and (not narrows or gradient.dtype is rounding):
        total.copy_(gradient)
        return
    size = CHUNK_ELEMENTS * min(MOST_THREADS, torch.get_num_threads())
    chunks = zip(total.view(-1).split(size), gradient.reshape(-1).split(size), strict=True)
    for own, added in chunks:
        if narrows and (is_first or added.dtype is rounding):
            narrow = _buffer(added, rounding, size)
            narrow.copy_(added if is_first else own)
            if not is_first:
                narrow.add_(added)  # computed in fp32 and rounded once
            own.copy_(narrow)
            continue
        if added.dtype is not own.dtype and own.device.type == "cpu":
            added = _buffer(added, own.dtype, size).copy_(added)
        own.add_(added)
        if narrows:
            own.copy_(_buffer(own, rounding, size).copy_(own))


def _buffer(like: Tensor, dtype: torch.dtype, size: int) -> Tensor:
    """Return memory for a chunk of ``like`` in ``dtype``: this thread's own on the CPU.

    In a dry run it is fake, and must not be kept.
    """
    if like.device.type != "cpu" or is_fake(like):
        return torch.empty_like(like, dtype=dtype)
    kept: dict[torch.dtype, Tensor] = vars(_buffers).setdefault("by_dtype", {})
    if dtype not in kept or kept[dtype].numel() < size:
        kept[dtype] = torch.empty(size, dtype=dtype, device="cpu")
    return kept[dtype][: like.numel()]

"""What it takes to have the first rank's weights on every rank."""

from collections.abc import Iterable
from itertools import pairwise

BROADCAST_BYTES = 256 * 2**20


def broadcast_bytes(sizes: Iterable[int]) -> int:
    """Most bytes of copies, for tensors of ``sizes`` bytes in their order.

    PyTorch's ``_broadcast_coalesced`` lays tensors together until there are BROADCAST_BYTES, and
    has two such broadcasts under way; a tensor alone is sent as it is.
    """
    copies: list[int] = [0]
    together = count = 0
    for size in sizes:
        together, count = together + size, count + 1
        if together >= BROADCAST_BYTES:
            copies.append(together if count > 1 else 0)
            together = count = 0
    copies.append(together if count > 1 else 0)
    return max(first + second for first, second in pairwise(copies))

"""Flat memory used again from unit to unit.

On the CPU a fresh allocation of some MiB is a run of page faults, which cost more than the copy
that fills it. (CUDA's caching allocator has no such cost.)
"""

import torch
from torch import Tensor


class Buffers:
    """Takes and gives flat tensors on the CPU; holds what nobody uses until ``clear``."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return (elements,) of undefined values."""
        fits = (each.dtype is dtype and each.numel() >= elements for each in self._free)
        place = next((place for place, fit in enumerate(fits) if fit), None)
        if place is not None:
            return self._free.pop(place)[:elements]
        # What is too small now gives way to what is large enough for both.
        self._free = [each for each in self._free if each.dtype is not dtype]
        return torch.empty(elements, dtype=dtype)

    def give(self, buffer: Tensor) -> None:
        """Take back what ``take`` returned; its values may change from now on."""
        elements = buffer.untyped_storage().nbytes() // buffer.element_size()
        self._free.append(buffer.as_strided((elements,), (1,), 0))

    def clear(self) -> None:
        self._free.clear()

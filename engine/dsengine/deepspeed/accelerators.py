"""The device a script trains on, as returned by DeepSpeed's ``get_accelerator()``."""

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from dsengine.observation.memory import peak_resident, resident


class Accelerator:
    """CUDA (or ROCm) devices, implemented with torch's own functions.

    Names that are not defined here are looked up in ``torch.cuda``: ``memory_allocated``,
    ``empty_cache``, ``manual_seed_all``, ``Stream``, ``get_rng_state`` ...
    """

    _name = "cuda"
    _backend = "nccl"

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.get_device_module(self._name), name)

    def device_name(self, device_index: int | None = None) -> str:
        """Return ``cuda``, or ``cuda:1`` for device 1."""
        return self._name if device_index is None else f"{self._name}:{device_index}"

    def current_device_name(self) -> str:
        return self.device_name(self.current_device())

    def communication_backend_name(self) -> str:
        return self._backend

    def is_fp16_supported(self) -> bool:
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        narrow = [torch.float16] if self.is_fp16_supported() else []
        return [torch.float32, *narrow, *([torch.bfloat16] if self.is_bf16_supported() else [])]

    def total_memory(self, device_index: int | None = None) -> int:
        """Return a device's memory in bytes."""
        return self.mem_get_info(device_index)[1]

    def available_memory(self, device_index: int | None = None) -> int:
        """Return a device's free memory in bytes."""
        return self.mem_get_info(device_index)[0]

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    def pin_memory(
        self,
        tensor: torch.Tensor,
        align_bytes: int = 1,
        *,
        make_copy: bool = True,
        match_shape: bool = True,
    ) -> torch.Tensor:
        """Return a copy in pinned memory.

        ``make_copy=False``: uninitialized pinned memory, flat without ``match_shape``.
        """
        del align_bytes
        if make_copy:
            return tensor.pin_memory()
        shape = tensor.shape if match_shape else (tensor.numel(),)
        return torch.empty(shape, dtype=tensor.dtype, pin_memory=True)

    def unpin_memory(self, tensor: torch.Tensor) -> None:
        """Do nothing: the memory is released with the tensor."""

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def is_synchronized_device(self) -> bool:
        """Whether operations are synchronous."""
        return False

    def range_push(self, message: str) -> None:
        """Begin a range in a profiler's timeline."""
        torch.cuda.nvtx.range_push(message)

    def range_pop(self) -> None:
        torch.cuda.nvtx.range_pop()

    def random(self) -> Any:
        return torch.random


class Host(Accelerator):
    """The CPU. Memory figures are those of the process: resident bytes and their peak."""

    _name = "cpu"
    _backend = "gloo"

    def device_name(self, device_index: int | None = None) -> str:
        del device_index
        return self._name

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        """Return the launcher's number of ranks on this host (LOCAL_SIZE; default: 1)."""
        return int(os.environ.get("LOCAL_SIZE", 0)) or 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device_index: Any) -> None:
        """Do nothing: there is only one CPU device."""

    def is_bf16_supported(self) -> bool:
        return True

    def is_synchronized_device(self) -> bool:
        return True

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        del device_index
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device_index: int | None = None) -> None:
        del device_index
        torch.set_rng_state(state)

    def stream(self, stream: Any) -> AbstractContextManager[None]:
        del stream
        return nullcontext()

    def empty_cache(self) -> None:
        """Do nothing: freed memory is returned to the system."""

    def memory_allocated(self, device_index: int | None = None) -> int:
        """Return the resident bytes of this process."""
        del device_index
        return resident()

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        """Return the peak resident bytes of this process; they cannot be reset."""
        del device_index
        return peak_resident()

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        """Do nothing: the system counts the peak from the start of the process."""

    def mem_get_info(self, device_index: int | None = None) -> tuple[int, int]:
        """Return (available, total) bytes of the machine."""
        del device_index
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page

    def pin_memory(
        self,
        tensor: torch.Tensor,
        align_bytes: int = 1,
        *,
        make_copy: bool = True,
        match_shape: bool = True,
    ) -> torch.Tensor:
        """Return ``tensor``: without transfers there is nothing to pin."""
        del align_bytes, make_copy, match_shape
        return tensor

    def range_push(self, message: str) -> None:
        """Do nothing: ranges are for CUDA profilers."""

    def range_pop(self) -> None:
        """Do nothing, like ``range_push``."""


@cache
def get_accelerator() -> Accelerator:
    """Return the device on which engines of this process train."""
    return Accelerator() if torch.cuda.is_available() else Host()


def is_current_accelerator_supported() -> bool:
    """Return whether engines can train here, which is always True on CUDA, ROCm and CPU."""
    return get_accelerator().device_name() in ("cuda", "cpu")

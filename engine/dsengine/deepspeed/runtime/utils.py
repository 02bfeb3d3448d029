"""Memory, as scripts print it between two phases."""

import gc

import torch.distributed as dist

from dsengine.deepspeed.accelerator import get_accelerator

_GIB = 1024**3


def see_memory_usage(message: str, force: bool = False) -> None:
    """Print on rank 0 what is held, in GiB, and begin a new peak; nothing unless ``force``.

    MA: allocated on the device. CA: kept by its allocator. On the CPU both are what is resident.
    """
    if not force or (dist.is_initialized() and dist.get_rank() != 0):
        return
    gc.collect()
    device = get_accelerator()
    amounts = {
        "MA": device.memory_allocated(),
        "Max_MA": device.max_memory_allocated(),
        "CA": device.memory_reserved(),
        "Max_CA": device.max_memory_reserved(),
    }
    held = " ".join(f"{name} {amount / _GIB:.2f} GiB" for name, amount in amounts.items())
    print(f"{message}\n{held}", flush=True)
    device.reset_peak_memory_stats()


__all__ = ["see_memory_usage"]

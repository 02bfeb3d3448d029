"""memory_breakdown: what is held after a phase."""

import resource

import torch

GIB = 1024**3


def memory_line(phase: str, device: torch.device) -> str:
    """Allocated and peak GiB: the allocator's on CUDA, else those of the process."""
    if device.type == "cuda":
        held, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        return f"memory after {phase}: {held / GIB:.2f} GiB allocated, peak {peak / GIB:.2f} GiB"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return f"memory after {phase}: peak resident {peak / GIB:.2f} GiB"

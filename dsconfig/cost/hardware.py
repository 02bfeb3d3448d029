"""Bytes that no formula gives: measured or documented, each with its source.

None of them is fitted to a row of the validation table.
"""

GIB = 2**30

CONTEXT_BYTES = int(0.71 * GIB)
"""CUDA context and kernels per process, recent drivers with lazy loading (0.47 to 0.92 GiB:
ml-engineering, training/performance and debug/pytorch)."""

COMMUNICATOR_BYTES = int(1.0 * GIB)
"""NCCL buffers after the first collective with more than one rank (1 to 2 GiB, same source)."""

MEBI = 2**20

CUBLAS_WORKSPACE_BYTES = int(8.125 * MEBI)
"""Per handle and stream before Hopper (PyTorch's CUDA notes, CUBLAS_WORKSPACE_CONFIG)."""

CUBLAS_WORKSPACE_HOPPER_BYTES = 32 * MEBI
"""The same on Hopper and later."""

HIPBLAS_WORKSPACE_BYTES = 32 * MEBI
"""The same on AMD (PyTorch's ATen/cuda/CublasHandlePool.cpp)."""

HIPBLAS_WORKSPACE_CDNA3_BYTES = 128 * MEBI
"""The same on AMD's gfx94x and gfx95x."""

RESERVED_OVER_ALLOCATED = 1.05
"""Caching allocator with steady shapes: 1.02 to 1.10 (PyTorch's CUDA notes; published runs)."""


def pinned(amount: int) -> int:
    """Bytes that PyTorch's pinned-memory allocator takes: the next power of two."""
    return 1 << (amount - 1).bit_length() if amount > 0 else 0


def workspace_bytes(architecture: str | None) -> int:
    """Workspace for matrix products of one process, by compute capability (8.0) or gfx name."""
    if architecture is None:
        return CUBLAS_WORKSPACE_BYTES
    if architecture.startswith("gfx"):
        recent = architecture.startswith(("gfx94", "gfx95"))
        return HIPBLAS_WORKSPACE_CDNA3_BYTES if recent else HIPBLAS_WORKSPACE_BYTES
    hopper = float(architecture) >= 9
    return CUBLAS_WORKSPACE_HOPPER_BYTES if hopper else CUBLAS_WORKSPACE_BYTES

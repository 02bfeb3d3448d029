"""Bytes that no formula gives: measured or documented, each with its source.

None of them is fitted to a row of the validation table.
"""

GIB = 2**30

CONTEXT_BYTES = int(0.71 * GIB)
"""CUDA context and kernels per process, recent drivers with lazy loading (0.47 to 0.92 GiB:
ml-engineering, training/performance and debug/pytorch)."""

COMMUNICATOR_BYTES = int(1.0 * GIB)
"""NCCL buffers after the first collective with more than one rank (1 to 2 GiB, same source)."""

CUBLAS_WORKSPACE_BYTES = int(8.125 * 2**20)
"""Per handle and stream before Hopper (PyTorch's CUDA notes, CUBLAS_WORKSPACE_CONFIG)."""

CUBLAS_WORKSPACE_HOPPER_BYTES = 32 * 2**20
"""The same on Hopper and later."""

RESERVED_OVER_ALLOCATED = 1.05
"""Caching allocator with steady shapes: 1.02 to 1.10 (PyTorch's CUDA notes; published runs)."""

RESERVED_RANGE = (1.02, 1.10)

BLOCK_BYTES = 512
"""Every device allocation is rounded up to this (PyTorch's CUDA caching allocator)."""


def pinned(amount: int) -> int:
    """Bytes that PyTorch's pinned-memory allocator takes: the next power of two."""
    return 1 << (amount - 1).bit_length() if amount > 0 else 0


def workspace_bytes(compute_capability: str | None) -> int:
    """cuBLAS workspace of one process."""
    major = int(float(compute_capability)) if compute_capability else 8
    return CUBLAS_WORKSPACE_HOPPER_BYTES if major >= 9 else CUBLAS_WORKSPACE_BYTES

"""What no formula gives: bytes that programs hold, and how fast machines are, each with its source.

None of them is fitted to a row of the validation table. What is known of a card (rate, memory,
links) comes from the catalogue; the rest stands here, with what is taken for an unknown card.
"""

from dataclasses import dataclass

from dsconfig.facts.facts import Facts
from dsconfig.mesh import ranks_per_node

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


def outside_bytes(facts: Facts) -> int:
    """What a process holds on its device beside the allocator's pool: context, communicators."""
    return CONTEXT_BYTES + (COMMUNICATOR_BYTES if (facts.world_size or 1) > 1 else 0)


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


USUAL_TFLOPS = 312.0
"""Dense 16-bit rate where the card is not known: an A100's (NVIDIA's data sheet)."""

EFFICIENCY = 0.45
"""Share of the dense rate that a tuned decoder reaches. Assumed, in the middle of what is
published: 0.33 to 0.39 (torchtitan, Llama-3.1-8B), 0.40 (DeepSpeed ZeRO-3, Granite-7B), 0.46 on
H100 and 0.57 on A100 (fms-fsdp, 7B)."""

SMALL_BATCH_TOKENS = 2048
"""Tokens per pass at which half of that efficiency is reached. Assumed."""

USUAL_MEMORY_GB = 1555.0
"""GB/s of device memory where the card is not known: an A100-40GB's (NVIDIA's data sheet)."""

PCIE_GB = 31.5
"""GB/s in one direction of PCIe 4.0 x16, which an A100 has: 16 GT/s x 16 lanes x 128/130 / 8."""

PINNED_SHARE = 12 / 15.75
"""Of that, what copies of page-locked memory reach: 12 GB/s over PCIe 3.0 x16 (NVIDIA's CUDA C++
Best Practices Guide, Pinned Memory)."""

COLLECTIVE_SHARE = 0.7
"""Of a link's data sheet, what collectives reach. Assumed: no measurement that was read stands
behind it."""

ADAPTER_GB = 25.0
"""GB/s per device between nodes: one 200 Gbit/s adapter each (a DGX A100's)."""

NVME_READ_GB, NVME_WRITE_GB = 3.69, 3.18
"""GB/s of one NVMe drive under asynchronous I/O, shared by the ranks of a node (DeepSpeed's
DeepNVMe tutorial, ``ds_nvme_tune``)."""

HOST_ADAM_ELEMENTS = 4.0e9
"""Elements per second and node of a vectorised Adam in main memory. Assumed: 28 bytes for each at a
little more than 100 GB/s, about half of what the memory of a server with two sockets delivers."""

UPDATE_BYTES = 28
"""Adam reads gradient, master weight and two moments and writes all but the gradient, in fp32."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Per rank and second, in one direction: FLOPs, bytes, and elements of the host's Adam."""

    flops: float
    memory: float
    link: float
    pcie: float
    nvme_read: float
    nvme_write: float
    host_adam: float


def rates(facts: Facts) -> Rates:
    """What one rank reaches; the ranks of a node share its disks and processors."""
    device = facts.device
    sharing = ranks_per_node(facts.world_size or 1, facts.nodes)
    pcie = (device.pcie_gb_per_second if device else None) or PCIE_GB
    inside = (device.link_gb_per_second if device else None) or pcie
    link = inside * COLLECTIVE_SHARE
    if (facts.nodes or 1) > 1:
        link = min(link, ADAPTER_GB)
    return Rates(
        flops=((device.tflops_16bit if device else None) or USUAL_TFLOPS) * 1e12 * EFFICIENCY,
        memory=((device.memory_gb_per_second if device else None) or USUAL_MEMORY_GB) * 1e9,
        link=link * 1e9,
        pcie=pcie * PINNED_SHARE * 1e9,
        nvme_read=NVME_READ_GB * 1e9 / sharing,
        nvme_write=NVME_WRITE_GB * 1e9 / sharing,
        host_adam=HOST_ADAM_ELEMENTS / sharing,
    )

"""What no formula gives: bytes that programs hold, and how fast machines are, each with its source.

None of them is fitted to a row of the validation table. What is known of a card (rate, memory,
links) comes from the catalogue; the rest stands here, with what is taken for an unknown card.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from dsconfig.facts.facts import Facts
from dsconfig.facts.machine import DeviceFacts, HostFacts
from dsconfig.mesh import ranks_per_node
from dsconfig.report.sizes import GIB, MIB
from dsconfig.schema.version import Version

CONTEXT_BYTES = int(0.71 * GIB)
"""CUDA context and kernels per process, recent drivers with lazy loading (0.47 to 0.92 GiB:
ml-engineering, training/performance and debug/pytorch)."""

EAGER_LOADING_BYTES = 666_632_192 - 287_047_680
"""More of a context that loads all kernels at once, as torch did before 1.13
(pytorch/pytorch#86509 has both sizes)."""
LOADS_LAZILY = {"torch": Version(1, 13, 0), "cuda": Version(11, 7, 0)}
"""Releases from which only those kernels are loaded that are used: torch asks for it since 1.13,
and CUDA's runtime has it since 11.7 (CUDA programming guide, "Lazy loading", requirements)."""

COMMUNICATOR_BYTES = int(1.0 * GIB)
"""NCCL buffers of a communicator after its first collective (1 to 2 GiB, same source)."""

CUBLAS_WORKSPACE_BYTES = int(8.125 * MIB)
"""Per handle and stream before Hopper (PyTorch's CUDA notes, CUBLAS_WORKSPACE_CONFIG)."""

CUBLAS_WORKSPACE_HOPPER_BYTES = 32 * MIB
"""The same on Hopper and later."""

HIPBLAS_WORKSPACE_BYTES = 32 * MIB
"""The same on AMD (PyTorch's ATen/cuda/CublasHandlePool.cpp)."""

HIPBLAS_WORKSPACE_CDNA3_BYTES = 128 * MIB
"""The same on AMD's gfx94x and gfx95x."""

RESERVED_OVER_ALLOCATED = 1.05
"""Caching allocator with steady shapes, as a rule (PyTorch's CUDA notes; published runs)."""

LEAST_RESERVED, MOST_RESERVED = 1.02, 1.10
"""The ends of what is published of it."""


def outside_bytes(facts: Facts) -> int:
    """What a process holds on its device beside the allocator's pool: context, communicators.

    Ranks along each axis of the mesh have a communicator of their own, with its own buffers.
    """
    degrees = (facts.tensor_parallel, facts.sequence_parallel, facts.pipeline_parallel)
    axes = sum(degree > 1 for degree in (facts.data_parallel or 1, *degrees))
    named = {name: facts.releases.get(name) for name in LOADS_LAZILY}
    eager = any(
        release is not None and Version.parse(release) < LOADS_LAZILY[name]
        for name, release in named.items()
    )
    return CONTEXT_BYTES + EAGER_LOADING_BYTES * eager + axes * COMMUNICATOR_BYTES


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

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Share of the dense rate that all FLOPs of a decoder reach, those computed again among them.

    Where blocks are recomputed it is higher: the same work beside more of what products do best.
    """

    plain: Range
    recomputing: Range


FULLY_SHARD: Mapping[str, Efficiency] = {
    "8.0": Efficiency(plain=(0.57, 0.60), recomputing=(0.57, 0.73)),
    "9.0": Efficiency(plain=(0.38, 0.46), recomputing=(0.42, 0.53)),
}
"""On PyTorch's own stack, by compute capability: the least and the most that is published.

A100: 0.57 (fms-fsdp, 7B), 0.60 and, recomputing, 0.73 (llm-foundry's benchmarking README, medians
of its rows with 8 GPUs, 1B parameters or more and 4,096 tokens or less). H100: 0.46 (fms-fsdp, 7B),
0.42 and, recomputing, 0.53 (llm-foundry, the same medians), 0.33 to 0.39 of model FLOPs while a
sixth of the products is computed again, so 0.38 to 0.46 (torchtitan, Llama-3.1-8B)."""

DEEPSPEED: Mapping[str, Efficiency] = {
    "8.0": Efficiency(plain=(0.40, 0.60), recomputing=(0.40, 0.73)),
    "9.0": Efficiency(plain=(0.28, 0.46), recomputing=(0.28, 0.53)),
}
"""In a training loop around DeepSpeed. A100: from 0.40 (ZeRO-3, Granite-7B) up to what the card
does on the other stack. H100: none was found; the least is assumed to be lower in the ratio of the
two cards there."""

USUAL_EFFICIENCY = Efficiency(plain=(0.33, 0.60), recomputing=(0.33, 0.73))
"""Of any other card. Assumed: the range of those two together."""

SPREAD_OF_LINKS: Range = (0.5, 0.9)
"""Of a link's data sheet, what collectives reach. Assumed: no measurement that was read stands
behind it."""

HIDDEN_SHARE = 0.5
"""Of the communication that may run beside compute, what is hidden. Assumed, between none (LLaMA-7B
on eight A800, decision 0503) and all (torchtitan, Llama-2-70B on 64 A100)."""

LAUNCHES_OF_BLOCK = 40
"""Kernels of a block in forward, a transformers decoder in eager mode: products 7, norms 2 x 6,
rotary 8, attention 3, activation and residuals 5, casts and copies. Counted in its modules."""

LAUNCH_SECONDS: Range = (4e-6, 12e-6)
"""Of the host per kernel: 5 microseconds and more to launch one (CUDA C++ programming guide gives
2.2 for an empty one), and the framework's own work around it."""

USUAL_MEMORY_GB = 1555.0
"""GB/s of device memory where the card is not known: an A100-40GB's (NVIDIA's data sheet)."""

PCIE_GB = 31.5
"""GB/s in one direction of PCIe 4.0 x16, which an A100 has: 16 GT/s x 16 lanes x 128/130 / 8."""

PINNED_SHARE = 12 / 15.75
"""Of that, what copies of page-locked memory reach: 12 GB/s over PCIe 3.0 x16 (NVIDIA's CUDA C++
Best Practices Guide, Pinned Memory)."""

CARDS_OF_UPLINK = 2
"""Cards behind one switch of a node, whose way to the processor they share when all copy at once,
as they do in a step: two on boards with eight A100 or H100 (naddod.com, topology of such servers).
A DGX-2 has 12 GB/s to one card and 3 to each of sixteen (ZeRO-Infinity, arXiv:2104.07857, 3)."""

ADAPTER_GB: Mapping[str, float] = {"slow": 6.25, "usual": 25.0, "fast": 50.0}
"""GB/s between nodes for each device in them: a 200 Gbit/s adapter each (a DGX A100's); from
400 Gbit/s for eight (AWS p4d) to as much for each (a DGX H100's)."""

NVME_READ_GB, NVME_WRITE_GB = 3.69, 3.18
"""GB/s of one NVMe drive under asynchronous I/O, shared by the ranks of a node (DeepSpeed's
DeepNVMe tutorial, ``ds_nvme_tune``)."""

HOST_ADAM_ELEMENTS: Range = (1.0e9, 1.7e9)
"""Elements per second and node that an optimizer step on the host gets through: unscaling,
clipping, DeepSpeedCPUAdam and the cast back. Llama-2-7B on four A100: the CPU's path takes more
than 4 s, the whole step 7 s instead of 0.5 (DeepSpeed's ZenFlow blog). A 72B on four nodes of eight
A100: 10 s instead of 0.2, so 1.8e9 (deepspeedai/DeepSpeed#6834). Ranks whose cores are not bound
take 1.2 to 1.3 times as long (#7474, the ZenFlow blog on binding)."""

HOST_STEP_BYTES: Range = (46 / 0.7, 34.0)
"""Bytes of main memory that such a step moves for each element where a copy's speed is measured.
34: an update, the weight read again and its 16 bits written. 46: the gradient read for its norm,
read and written for its scale, too, at 70 % of a copy's speed."""

UPDATE_BYTES = 28
"""Adam reads gradient, master weight and two moments and writes all but the gradient, in fp32."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Per rank and second, in one direction: FLOPs, bytes, and elements of the host's Adam.

    ``link`` is that of ranks that share states, ``node_link`` that of ranks that share layers,
    which stand in one node; ``launch`` is seconds of the host per kernel.
    """

    flops: float
    flops_recomputing: float
    memory: float
    link: float
    node_link: float
    pcie: float
    nvme_read: float
    nvme_write: float
    host_adam: float
    launch: float


def rates(facts: Facts, end: str = "usual", *, is_deepspeed: bool = False) -> Rates:
    """What one rank reaches; the ranks of a node share its disks and processors.

    ``end``: ``slow`` or ``fast`` for the ends of what is published, ``usual`` for the geometric
    middle of them.
    """
    device, host = facts.device, facts.host or HostFacts()
    sharing = ranks_per_node(facts.world_size or 1, facts.nodes)
    pcie = (device.pcie_gb_per_second if device else None) or PCIE_GB
    inside = (device.link_gb_per_second if device else None) or pcie
    share = _at(SPREAD_OF_LINKS, end)
    link = inside * share
    if (facts.nodes or 1) > 1:
        # A ring crosses between two nodes once, over the adapters of all their ranks together.
        link = min(link, (facts.node_link_gb_per_second or ADAPTER_GB[end]) * sharing)
    efficiency = efficiency_of(device, is_deepspeed=is_deepspeed)
    peak = ((device.tflops_16bit if device else None) or USUAL_TFLOPS) * 1e12
    return Rates(
        flops=peak * _at(efficiency.plain, end),
        flops_recomputing=peak * _at(efficiency.recomputing, end),
        memory=((device.memory_gb_per_second if device else None) or USUAL_MEMORY_GB) * 1e9,
        link=link * 1e9,
        node_link=inside * share * 1e9,
        pcie=(host.card_gb_per_second or _pcie(pcie, sharing, end)) * 1e9,
        nvme_read=(host.nvme_read_gb_per_second or NVME_READ_GB) * 1e9 / sharing,
        nvme_write=(host.nvme_write_gb_per_second or NVME_WRITE_GB) * 1e9 / sharing,
        host_adam=_host_adam(host, end) / sharing,
        launch=_at((LAUNCH_SECONDS[1], LAUNCH_SECONDS[0]), end),
    )


def _pcie(data_sheet: float, sharing: int, end: str) -> float:
    """GB/s from main memory to one card of a node: from a shared way to one of its own."""
    alone = data_sheet * PINNED_SHARE
    return _at((alone / min(CARDS_OF_UPLINK, sharing), alone), end)


def _host_adam(host: HostFacts, end: str) -> float:
    if host.copy_gb_per_second is None:
        return _at(HOST_ADAM_ELEMENTS, end)
    slow, fast = HOST_STEP_BYTES
    rate = host.copy_gb_per_second * 1e9
    return _at((rate / slow, rate / fast), end)


def efficiency_of(device: DeviceFacts | None, *, is_deepspeed: bool = False) -> Efficiency:
    """Of the card's generation; an unknown card is taken to be an A100, as its rate is."""
    capability = device.compute_capability if device else "8.0"
    published = DEEPSPEED if is_deepspeed else FULLY_SHARD
    return published.get(capability or "", USUAL_EFFICIENCY)


def _at(ends: Range, end: str) -> float:
    slow, fast = ends
    return {"slow": slow, "fast": fast}.get(end, sqrt(slow * fast))

"""Constants of programs and machines that no formula gives, each with its source.

None is fitted to a row of the validation table. What is known of a device (rate, memory, links)
comes from the catalogue; this module has the rest, and the defaults for an unknown device.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from dsconfig.facts.facts import Facts
from dsconfig.facts.machine import DeviceFacts, HostFacts
from dsconfig.mesh import Mesh, ranks_per_node
from dsconfig.report.sizes import GIB, MIB
from dsconfig.runtimes.base import Runtime, runtime_of
from dsconfig.schema.version import Version

CONTEXT_BYTES = int(0.71 * GIB)
"""CUDA context and kernels per process, recent drivers with lazy loading (0.47 to 0.92 GiB:
ml-engineering, training/performance and debug/pytorch)."""

EAGER_LOADING_BYTES = 666_632_192 - 287_047_680
"""Additional context size if all kernels are loaded at once, as torch did before 1.13
(pytorch/pytorch#86509 has both sizes)."""
LOADS_LAZILY = {"torch": Version(1, 13, 0), "cuda": Version(11, 7, 0)}
"""First releases that load kernels on first use: torch enables it since 1.13, and CUDA's runtime
supports it since 11.7 (CUDA programming guide, "Lazy loading", requirements)."""

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
"""Typical ratio of the caching allocator with steady shapes (PyTorch's CUDA notes; published runs).
"""

LEAST_RESERVED, MOST_RESERVED = 1.02, 1.10
"""The lowest and highest published ratio."""


def outside_bytes(facts: Facts) -> int:
    """Return what a process holds on its device outside the allocator's pool: context,
    communicators.

    Ranks along each axis of the mesh have their own communicator with its own buffers.
    """
    mesh = Mesh.over(facts.world_size or 1, facts.degrees, sharded=True)
    groups = mesh.axes | (mesh.expert_axes if mesh.expert > 1 else {})
    axes = sum(ranks > 1 for ranks in groups.values())
    named = {name: facts.releases.get(name) for name in LOADS_LAZILY}
    eager = any(
        release is not None and Version.parse(release) < LOADS_LAZILY[name]
        for name, release in named.items()
    )
    return CONTEXT_BYTES + EAGER_LOADING_BYTES * eager + axes * COMMUNICATOR_BYTES


def pinned(amount: int) -> int:
    """Return the bytes that PyTorch's pinned-memory allocator takes: the next power of two."""
    return 1 << (amount - 1).bit_length() if amount > 0 else 0


def workspace_bytes(architecture: str | None) -> int:
    """Return the matrix product workspace of one process, by compute capability
    (8.0) or gfx name."""
    if architecture is None:
        return CUBLAS_WORKSPACE_BYTES
    if architecture.startswith("gfx"):
        recent = architecture.startswith(("gfx94", "gfx95"))
        return HIPBLAS_WORKSPACE_CDNA3_BYTES if recent else HIPBLAS_WORKSPACE_BYTES
    hopper = float(architecture) >= 9
    return CUBLAS_WORKSPACE_HOPPER_BYTES if hopper else CUBLAS_WORKSPACE_BYTES


USUAL_TFLOPS = 312.0
"""Dense 16-bit rate of an unknown device: an A100's (NVIDIA's data sheet)."""

Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Fraction of the dense rate that all FLOPs of a decoder reach, recomputation included.

    Higher with recomputation: the additional work consists mostly of matrix products.
    """

    plain: Range
    recomputing: Range


FULLY_SHARD: Mapping[str, Efficiency] = {
    "8.0": Efficiency(plain=(0.57, 0.60), recomputing=(0.57, 0.73)),
    "9.0": Efficiency(plain=(0.38, 0.46), recomputing=(0.42, 0.53)),
}
"""PyTorch's own stack, by compute capability: the lowest and highest published value.

A100: 0.57 (fms-fsdp, 7B), 0.60 and, recomputing, 0.73 (llm-foundry's benchmarking README, medians
of its rows with 8 GPUs, 1B parameters or more and 4,096 tokens or less). H100: 0.46 (fms-fsdp, 7B),
0.42 and, recomputing, 0.53 (llm-foundry, the same medians), 0.33 to 0.39 of model FLOPs while a
sixth of the products is recomputed, so 0.38 to 0.46 (torchtitan, Llama-3.1-8B).
"""

DEEPSPEED: Mapping[str, Efficiency] = {
    "8.0": Efficiency(plain=(0.40, 0.60), recomputing=(0.40, 0.73)),
    "9.0": Efficiency(plain=(0.28, 0.46), recomputing=(0.28, 0.53)),
}
"""DeepSpeed training loops. A100: from 0.40 (ZeRO-3, Granite-7B) up to the other stack's values.
H100: no published value found; the lower end is scaled by the ratio of the two GPUs there."""

USUAL_EFFICIENCY = Efficiency(plain=(0.33, 0.60), recomputing=(0.33, 0.73))
"""Other devices. Assumed: the combined range of the two above."""

SPREAD_OF_LINKS: Range = (0.5, 0.9)
"""Fraction of the data-sheet rate of NVLink or an adapter that collectives reach. Assumed: not
based on a measurement."""

PAIR = 2
"""Cards that a bridge connects (NVIDIA's data sheets, as of the TITAN RTX and A100 PCIe)."""

SPREAD_OF_PCIE: Range = (0.31, 0.82)
"""The same for PCIe x16 between GPUs without NVLink. 0.82: four RTX 4090 with peer copies, 25.9 of
31.5 GB/s (tinygrad/open-gpu-kernel-modules#36). 0.56 and 0.44: four and eight RTX 5090, 35 and 28
of 63 (NVIDIA/nccl#1639). 0.31: copies through host memory, as without peer copies, 9.8 of 31.5
between two A40 (NVIDIA/nccl-tests#74)."""

HIDDEN_SHARE = 0.5
"""Hidden fraction of the communication that can overlap with compute. Assumed, between none
(LLaMA-7B on eight A800, docs/decisions/0503) and all (torchtitan, Llama-2-70B on 64 A100)."""

LAUNCHES_OF_BLOCK = 40
"""Kernels of a block in forward, a transformers decoder in eager mode: products 7, norms 2 x 6,
rotary 8, attention 3, activation and residuals 5, casts and copies. Counted in its modules."""

LAUNCH_SECONDS: Range = (4e-6, 31e-6)
"""Host time per kernel: the launch (the CUDA C++ programming guide gives 2.2 for an empty one) and
the framework's own work. 31: Llama-2-7B at batch 1 in eager PyTorch, bound by the host, 25.5 tokens
per second through 32 blocks (PyTorch's blog "Accelerating Generative AI II")."""

HOST_OF_STAGES: Mapping[str, tuple[float, float, float, float]] = {
    "dsengine": (1.0, 1.5, 1.5, 1.99),
    "deepspeed": (2.3, 2.8, 3.5, 8.4),
}
"""Host time of a step by ZeRO stage, relative to the same model under DDP: hooks that gather and
release each module and reduce each gradient. dsengine: ``make bench-host``, CPU time
(docs/internals/engine.md). DeepSpeed 0.19: ``make gpu``, 24 blocks and 4,096 tokens on one H100
(docs/internals/gpu.md, Speed). A step takes 115, 140, 175 and 421 ms there and 50 under DDP, which
computation may bound: lower limits. Without a GPU, whose streams and events its hooks also use,
they take 1.7, 1.7, 1.7 and 4.4 times as long as DDP."""

USUAL_MEMORY_GB = 1555.0
"""GB/s of device memory of an unknown device: an A100-40GB's (NVIDIA's data sheet)."""

PCIE_GB = 31.5
"""GB/s per direction of PCIe 4.0 x16, as on an A100: 16 GT/s x 16 lanes x 128/130 / 8."""

PINNED_SHARE = 12 / 15.75
"""Fraction of that reached by copies of page-locked memory: 12 GB/s over PCIe 3.0 x16 (NVIDIA's
CUDA C++ Best Practices Guide, Pinned Memory)."""

GPUS_PER_UPLINK = 2
"""GPUs behind one switch of a node that share its link to the processor when all copy at once, as
in a step: two on boards with eight A100 or H100 (naddod.com, topology of such servers). A DGX-2 has
12 GB/s to one GPU and 3 to each of sixteen (ZeRO-Infinity, arXiv:2104.07857, 3)."""

ADAPTER_GB: Mapping[str, float] = {"slow": 6.25, "usual": 25.0, "fast": 50.0}
"""GB/s between nodes per device: a 200 Gbit/s adapter each (a DGX A100's); from 400 Gbit/s for
eight (AWS p4d) to the same for each (a DGX H100's)."""

NVME_READ_GB, NVME_WRITE_GB = 3.69, 3.18
"""GB/s of one NVMe drive under asynchronous I/O, shared by the ranks of a node (DeepSpeed's
DeepNVMe tutorial, ``ds_nvme_tune``)."""

HOST_ADAM_ELEMENTS: Range = (1.0e9, 1.7e9)
"""Elements per second and node of an optimizer step on the host: unscaling, clipping,
DeepSpeedCPUAdam and the cast back. Llama-2-7B on four A100: the CPU part takes more than 4 s, the
full step 7 s instead of 0.5 (DeepSpeed's ZenFlow blog). A 72B on four nodes of eight A100: 10 s
instead of 0.2, so 1.8e9 (deepspeedai/DeepSpeed#6834). Ranks whose cores are not bound take 1.2 to
1.3 times as long (#7474, the ZenFlow blog on binding)."""

HOST_STEP_BYTES: Range = (46 / 0.7, 34.0)
"""Bytes of host memory traffic per element of such a step, if the copy rate is measured. 34: an
update, the weight read again and its 16 bits written. 46: the gradient also read for its norm, read
and written for its scale, at 70 % of the copy rate."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Per rank and second, in one direction: FLOPs, bytes, and elements of the host's Adam.

    ``link`` connects ranks that share states, ``node_link`` those that share layers, which are in
    one node; ``launch`` is host seconds per kernel.
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


def rates(facts: Facts, end: str = "usual", *, runtime: str | Runtime = "dsengine") -> Rates:
    """Return the rates of one rank; the ranks of a node share its disks and processors.

    ``end``: ``slow`` or ``fast`` for the ends of the published range, ``usual`` for its geometric
    mean.
    """
    device, host = facts.device, facts.host or HostFacts()
    sharing = ranks_per_node(facts.world_size or 1, facts.nodes)
    pcie = (device.pcie_gb_per_second if device else None) or PCIE_GB
    share = _at(SPREAD_OF_LINKS, end)
    link = inside = _between_gpus(device, pcie, sharing, end)
    if (facts.nodes or 1) > 1:
        # A ring crosses between two nodes once, over the adapters of all their ranks together.
        adapter = facts.node_link_gb_per_second or ADAPTER_GB[end]
        link = min(link, adapter * sharing * share)
    efficiency = efficiency_of(device, runtime_of(runtime))
    peak = ((device.tflops_16bit if device else None) or USUAL_TFLOPS) * 1e12
    return Rates(
        flops=peak * _at(efficiency.plain, end),
        flops_recomputing=peak * _at(efficiency.recomputing, end),
        memory=((device.memory_gb_per_second if device else None) or USUAL_MEMORY_GB) * 1e9,
        link=link * 1e9,
        node_link=inside * 1e9,
        pcie=(host.card_gb_per_second or _pcie(pcie, sharing, end)) * 1e9,
        nvme_read=(host.nvme_read_gb_per_second or NVME_READ_GB) * 1e9 / sharing,
        nvme_write=(host.nvme_write_gb_per_second or NVME_WRITE_GB) * 1e9 / sharing,
        host_adam=_host_adam(host, end) / sharing,
        launch=_at((LAUNCH_SECONDS[1], LAUNCH_SECONDS[0]), end),
    )


def _between_gpus(device: DeviceFacts | None, pcie: float, sharing: int, end: str) -> float:
    """Return GB/s between the GPUs of a node: NVLink, or PCIe without it.

    A bridge connects two cards; whether two have one is unknown, and more need PCIe anyway.
    """
    nvlink = device.link_gb_per_second if device else None
    is_bridge = device is not None and device.has_bridge
    if nvlink is None or (is_bridge and sharing > PAIR):
        return pcie * _at(SPREAD_OF_PCIE, end)
    slow = pcie * SPREAD_OF_PCIE[0] if is_bridge else nvlink * SPREAD_OF_LINKS[0]
    return _at((slow, nvlink * SPREAD_OF_LINKS[1]), end)


def _pcie(data_sheet: float, sharing: int, end: str) -> float:
    """Return GB/s from host memory to one GPU of a node: from a shared link to its own."""
    alone = data_sheet * PINNED_SHARE
    return _at((alone / min(GPUS_PER_UPLINK, sharing), alone), end)


def _host_adam(host: HostFacts, end: str) -> float:
    if host.copy_gb_per_second is None:
        return _at(HOST_ADAM_ELEMENTS, end)
    slow, fast = HOST_STEP_BYTES
    rate = host.copy_gb_per_second * 1e9
    return _at((rate / slow, rate / fast), end)


def efficiency_of(device: DeviceFacts | None, program: Runtime) -> Efficiency:
    """Return the efficiency of the device's generation; an unknown device is treated as an A100."""
    capability = device.compute_capability if device else "8.0"
    published = DEEPSPEED if program.runs_deepspeed else FULLY_SHARD
    return published.get(capability or "", USUAL_EFFICIENCY)


def _at(ends: Range, end: str) -> float:
    slow, fast = ends
    return {"slow": slow, "fast": fast}.get(end, sqrt(slow * fast))

"""The machines a config is for: accelerators and the nodes that hold them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One accelerator (or the CPU used as one).

    Bytes are exact; rates are dense TFLOPS; links are GB/s in one direction. None: unknown.
    """

    name: str
    kind: str = "cuda"
    """``cuda``, ``rocm``, ``hpu`` or ``cpu``."""
    memory_bytes: int | None = None
    bf16: bool = True
    fp16: bool = True
    tflops_16bit: float | None = None
    tflops_fp32: float | None = None
    memory_gb_per_second: float | None = None
    link_gb_per_second: float | None = None
    pcie_gb_per_second: float | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One node: main memory in bytes, CPU cores, NVMe directory and free bytes on it."""

    memory_bytes: int | None = None
    cores: int | None = None
    nvme_path: str | None = None
    nvme_bytes: int | None = None

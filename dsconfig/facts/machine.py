"""GPUs by name, hosts, and the hardware of this machine."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from dsconfig.facts import catalogue
from dsconfig.facts.inputs import FactError
from dsconfig.facts.naming import named
from dsconfig.report.sizes import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """One accelerator (or the CPU used as one).

    Bytes are exact; rates are dense TFLOPS; links are GB/s per direction. None: unknown.
    """

    name: str
    kind: str = "cuda"
    """``cuda``, ``rocm``, ``hpu``, ``npu`` or ``cpu``."""
    memory_bytes: int | None = None
    bf16: bool = True
    fp16: bool = True
    tflops_16bit: float | None = None
    tflops_fp32: float | None = None
    memory_gb_per_second: float | None = None
    link_gb_per_second: float | None = None
    has_bridge: bool = False
    """Whether the link is a bridge between two cards, sold separately."""
    pcie_gb_per_second: float | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One node: RAM in bytes, CPU cores, NVMe directory and the free bytes on it.

    Rates are measured GB/s, or None: copy of host memory (read plus write, all cores), disk read
    and write, copy to one GPU.
    """

    memory_bytes: int | None = None
    cores: int | None = None
    nvme_path: str | None = None
    nvme_bytes: int | None = None
    copy_gb_per_second: float | None = None
    nvme_read_gb_per_second: float | None = None
    nvme_write_gb_per_second: float | None = None
    card_gb_per_second: float | None = None

    @property
    def usable_bytes(self) -> int | None:
        """Host memory available to a job; the rest is used by the system."""
        if self.memory_bytes is None:
            return None
        left, taken = self.memory_bytes, 0.0
        for size, share in _TAKEN_BY_SYSTEM:
            part = min(left, size * GIB)
            left, taken = left - part, taken + part * share
        return self.memory_bytes - int(taken + left * _TAKEN_ABOVE)


_TAKEN_BY_SYSTEM = ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06))
_TAKEN_ABOVE = 0.02
"""Shares of successive GiB ranges, and of the rest, reserved for kernel, daemons and page cache.

As Google Kubernetes Engine reserves them (its page "Plan GKE Standard node sizes").
"""


_KIND_OF_VENDOR = {"nvidia": "cuda", "amd": "rocm", "intel": "hpu", "huawei": "npu"}


@lru_cache(maxsize=256)
def named_device(name: str) -> DeviceFacts:
    """Return the GPU whose name contains every part of ``name`` (``a100-80gb``, ``V100 16GB``).

    If several match, the first in the catalogue (SXM before PCIe) wins. A suffix such as
    ``mig 1g.10gb`` selects a MIG instance. Raises FactError with the closest names if none matches.
    """
    profile = _MIG.search(name)
    if profile is not None:
        return _mig_instance(named_device(name[: profile.start()]), profile)
    matches = matching_gpus(name)
    if not matches:
        known = (gpu["name"] for gpu in catalogue.gpus())
        remedy = f"Specify a GPU such as a100-80gb, or any name with {named('device_memory')}"
        raise catalogue.unknown("device", name, known, remedy)
    return _device_facts(matches[0])


def matching_gpus(name: str) -> list[Mapping[str, Any]]:
    """Return the catalogue entries that a name matches, the best first; a MIG suffix is ignored."""
    profile = _MIG.search(name)
    name = name[: profile.start()] if profile is not None else name
    squeezed, words = catalogue.squeezed(name), catalogue.words(name)
    exact = [
        gpu
        for gpu in catalogue.gpus()
        if squeezed in map(catalogue.squeezed, (gpu["name"], *gpu.get("aliases", ())))
    ]
    return exact or [gpu for gpu in catalogue.gpus() if _matches(words, gpu)]


_MIG = re.compile(r"[-_ ]+(?:mig[-_ ]+)?(\d)g\.(\d+)gb(?:\+(?:me|gfx))?\s*$", re.IGNORECASE)
"""A MIG profile after a GPU name, as in nvidia-smi: ``NVIDIA A100-SXM4-80GB MIG 1g.10gb``."""
_SLICES, _FEWER_SLICES = 7, 4
_IN_FEWER_SLICES = ("A30", "RTX-PRO-6000")


def _mig_instance(gpu: DeviceFacts, profile: re.Match[str]) -> DeviceFacts:
    """Return a MIG instance of a GPU (NVIDIA's MIG user guide, "Supported MIG Profiles").

    The profile states the compute slices (of seven, of four on some GPUs) and the memory; bandwidth
    is proportional to memory. Instances have no link to each other.
    """
    parts, size = int(profile[1]), int(profile[2])
    few = gpu.name.startswith(_IN_FEWER_SLICES)
    computes = parts / (_FEWER_SLICES if few else _SLICES)
    (nominal,) = (
        entry["memory_nominal_gb"] for entry in catalogue.gpus() if entry["name"] == gpu.name
    )
    share = size / nominal
    if computes > 1 or share > 1:
        message = f"{profile[0].strip(' -_')} is larger than the GPU {gpu.name}"
        raise FactError("device", f"{message}; specify a profile that nvidia-smi mig -lgip lists")

    def of(rate: float | None, part: float) -> float | None:
        return None if rate is None else rate * part

    return replace(
        gpu,
        name=f"{gpu.name} MIG {parts}g.{size}gb",
        memory_bytes=None if gpu.memory_bytes is None else int(gpu.memory_bytes * share),
        tflops_16bit=of(gpu.tflops_16bit, computes),
        tflops_fp32=of(gpu.tflops_fp32, computes),
        memory_gb_per_second=of(gpu.memory_gb_per_second, share),
        link_gb_per_second=None,
    )


def _matches(wanted: tuple[str, ...], gpu: Mapping[str, Any]) -> bool:
    have = catalogue.words(gpu["name"])
    size = f"{gpu['memory_nominal_gb']}gb"
    significant = set(wanted) - _NOISE
    return bool(significant) and all(
        part == size or any(_names(part, word) for word in have) for part in significant
    )


# Words that drivers and vendors add to the name of a GPU.
_MAKERS = frozenset({"nvidia", "amd", "intel", "huawei", "tesla", "geforce", "instinct", "gpu"})
_NOISE = _MAKERS | {
    *("hbm2", "hbm2e", "hbm3", "hbm3e", "oam"),
    *("generation", "blackwell", "edition", "workstation", "server"),
}


def _names(part: str, word: str) -> bool:
    """Return whether a part matches a word: ``80g`` and ``80`` ``80gb``, ``sxm`` ``sxm4``."""
    if part == word:
        return True
    if word.endswith("gb"):
        return part in (word[:-1], word[:-2])
    return part.isalpha() and word.startswith(part)


def _device_facts(gpu: Mapping[str, Any]) -> DeviceFacts:
    # Vendors state links as the sum of both directions; facts hold one direction.
    link, pcie = gpu["interconnect_gb_s"], gpu["pcie_gb_s"]
    return DeviceFacts(
        name=gpu["name"],
        kind=_KIND_OF_VENDOR[gpu["vendor"]],
        memory_bytes=gpu["memory_bytes_usable"],
        bf16=gpu["bf16"],
        tflops_16bit=gpu["tflops_bf16_dense"] or gpu["tflops_fp16_dense"],
        memory_gb_per_second=gpu["memory_gb_s"],
        link_gb_per_second=link / 2 if link else None,
        has_bridge=gpu.get("bridged", False),
        pcie_gb_per_second=pcie / 2 if pcie else None,
        compute_capability=gpu["compute_capability"],
    )


def cpu_device(ranks: int = 1) -> DeviceFacts:
    """Return the CPU as a training device, its memory shared evenly by ``ranks`` processes.

    PyTorch's CPU kernels support bf16 and fp16; the rates are unknown.
    """
    memory = host_memory_bytes()
    return DeviceFacts(name="cpu", kind="cpu", memory_bytes=memory // ranks if memory else None)


def local_host(nvme: str | None = None) -> HostFacts:
    """Return RAM and cores of this machine, and the free space below ``nvme``."""
    return HostFacts(
        memory_bytes=host_memory_bytes(),
        cores=os.cpu_count(),
        nvme_path=nvme,
        nvme_bytes=free_bytes(nvme) if nvme else None,
    )


def local_gpus() -> list[tuple[str, int]]:
    """Return (name, bytes) of each GPU of this machine from nvidia-smi; empty without it.

    CUDA_VISIBLE_DEVICES limits their number; they are assumed to be identical.
    """
    shown = _visible_count()
    try:
        lines = [] if shown == 0 else nvidia_smi("name,memory.total")
    except OSError:
        return []
    rows = (line.rsplit(",", 1) for line in lines)
    return [
        (row[0].strip(), int(row[1]) * MIB)
        for row in rows
        if len(row) == 2 and re.fullmatch(r" ?\d{1,9}", row[1])
    ][:shown]


NVIDIA_SMI_SECONDS = 15


def nvidia_smi(columns: str, form: str = "csv,noheader,nounits") -> list[str]:
    """Return a line of columns per GPU; none without the program.

    Raises OSError with the reason if it fails or does not answer.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, f"--query-gpu={columns}", f"--format={form}"]
    try:
        result = subprocess.run(query, capture_output=True, timeout=NVIDIA_SMI_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"it did not answer within {NVIDIA_SMI_SECONDS} s") from None
    if result.returncode != 0:
        raise OSError(result.stderr.decode(errors="replace").strip() or "no reason given")
    return result.stdout.decode(errors="replace").splitlines()


def _visible_count() -> int | None:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES allows; None: all."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return None
    return sum(index.strip() not in ("", "-1") for index in shown.split(","))


def host_memory_bytes() -> int | None:
    """Return the installed RAM in bytes, or None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    total = next((line for line in lines if line.startswith("MemTotal:")), None)
    return int(total.split()[1]) * 1024 if total else None


def free_bytes(directory: str) -> int:
    """Return the free bytes at a directory. Raises FactError if it does not exist."""
    try:
        return shutil.disk_usage(directory).free
    except OSError as error:
        raise FactError("nvme", f"{directory}: {error.strerror}") from error

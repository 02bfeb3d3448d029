"""The machines a config is for: cards by name, the nodes that hold them, and this one."""

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
from dsconfig.report.sizes import GIB, MIB


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
    """One node: main memory in bytes, CPU cores, NVMe directory and free bytes on it.

    Rates are GB/s, and None unless they were measured: what a copy of main memory reads and writes
    on all cores, what the disk reads and writes, what a copy to one card reaches.
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
        """What a job can have of the main memory; the rest is the system's."""
        if self.memory_bytes is None:
            return None
        left, taken = self.memory_bytes, 0.0
        for size, share in _TAKEN_BY_SYSTEM:
            part = min(left, size * GIB)
            left, taken = left - part, taken + part * share
        return self.memory_bytes - int(taken + left * _TAKEN_ABOVE)


_TAKEN_BY_SYSTEM = ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06))
_TAKEN_ABOVE = 0.02
"""Shares of one slice of GiB after the other, and of all above them, that kernel, daemons and page
cache need: what Google Kubernetes Engine keeps from the jobs of a node (its page "Plan GKE Standard
node sizes")."""


_KIND_OF_VENDOR = {"nvidia": "cuda", "amd": "rocm", "intel": "hpu"}
_REMEDY = "Name a card such as a100-80gb, or give --device-memory with any name"


@lru_cache(maxsize=256)
def named_device(name: str) -> DeviceFacts:
    """The card whose name holds every part of ``name`` (``a100-80gb``, ``h100``, ``V100 16GB``).

    Where several do, the first of the catalogue is taken (the SXM form stands before PCIe). A
    profile behind it (``a100-80gb mig 1g.10gb``) names a part of the card. Raises FactError, with
    the nearest names, when none does.
    """
    profile = _MIG.search(name)
    if profile is not None:
        return _part_of(named_device(name[: profile.start()]), profile)
    wanted = catalogue.words(name)
    exact = [
        card
        for card in catalogue.gpus()
        if catalogue.squeezed(card["name"]) == catalogue.squeezed(name)
    ]
    found = exact or [card for card in catalogue.gpus() if _matches(wanted, card)]
    if not found:
        known = (card["name"] for card in catalogue.gpus())
        raise catalogue.unknown("--device", name, known, _REMEDY)
    return _of_card(found[0])


_MIG = re.compile(r"[-_ ]+(?:mig[-_ ]+)?(\d)g\.(\d+)gb(?:\+(?:me|gfx))?\s*$", re.IGNORECASE)
"""A profile as nvidia-smi has it, behind a card: ``NVIDIA A100-SXM4-80GB MIG 1g.10gb``."""
_SLICES, _FEWER_SLICES = 7, 4
_IN_FEWER_SLICES = ("A30", "RTX-PRO-6000")


def _part_of(card: DeviceFacts, profile: re.Match[str]) -> DeviceFacts:
    """An instance of a card, by NVIDIA's guide to them ("Supported MIG Profiles").

    Its name says how many of seven parts of the multiprocessors (of four on some cards) it has,
    and how much memory; bandwidth follows memory. Instances have no link to each other.
    """
    parts, size = int(profile[1]), int(profile[2])
    few = card.name.startswith(_IN_FEWER_SLICES)
    computes = parts / (_FEWER_SLICES if few else _SLICES)
    (nominal,) = (
        each["memory_nominal_gb"] for each in catalogue.gpus() if each["name"] == card.name
    )
    share = size / nominal
    if computes > 1 or share > 1:
        said = f"{profile[0].strip(' -_')} is more than there is of a card {card.name}"
        raise FactError("--device", f"{said}; give a profile that nvidia-smi mig -lgip lists")

    def of(rate: float | None, part: float) -> float | None:
        return None if rate is None else rate * part

    return replace(
        card,
        name=f"{card.name} MIG {parts}g.{size}gb",
        memory_bytes=None if card.memory_bytes is None else int(card.memory_bytes * share),
        tflops_16bit=of(card.tflops_16bit, computes),
        tflops_fp32=of(card.tflops_fp32, computes),
        memory_gb_per_second=of(card.memory_gb_per_second, share),
        link_gb_per_second=None,
    )


def _matches(wanted: tuple[str, ...], card: Mapping[str, Any]) -> bool:
    have = catalogue.words(card["name"])
    size = f"{card['memory_nominal_gb']}gb"
    telling = set(wanted) - _NOISE
    return bool(telling) and all(
        part == size or any(_names(part, word) for word in have) for part in telling
    )


# What drivers and vendors put around the name of a card.
_MAKERS = frozenset({"nvidia", "amd", "intel", "tesla", "geforce", "instinct", "gpu"})
_NOISE = _MAKERS | {"hbm2", "hbm2e", "hbm3", "hbm3e"}


def _names(part: str, word: str) -> bool:
    """``80g`` and ``80`` name ``80gb``; ``sxm`` names ``sxm4``; ``a100`` only ``a100``."""
    if part == word:
        return True
    if word.endswith("gb"):
        return part in (word[:-1], word[:-2])
    return part.isalpha() and word.startswith(part)


def _of_card(card: Mapping[str, Any]) -> DeviceFacts:
    # Vendors print links as both directions summed; our facts hold one direction.
    link, pcie = card["interconnect_gb_s"], card["pcie_gb_s"]
    return DeviceFacts(
        name=card["name"],
        kind=_KIND_OF_VENDOR[card["vendor"]],
        memory_bytes=card["memory_bytes_usable"],
        bf16=card["bf16"],
        tflops_16bit=card["tflops_bf16_dense"] or card["tflops_fp16_dense"],
        memory_gb_per_second=card["memory_gb_s"],
        link_gb_per_second=link / 2 if link else None,
        pcie_gb_per_second=pcie / 2 if pcie else None,
        compute_capability=card["compute_capability"],
    )


def processor(ranks: int = 1) -> DeviceFacts:
    """The CPU as a training device, its memory shared evenly by ``ranks`` processes.

    bf16 and fp16 both work in PyTorch's CPU kernels; rates are not measured, so unknown.
    """
    memory = memory_bytes()
    return DeviceFacts(name="cpu", kind="cpu", memory_bytes=memory // ranks if memory else None)


def this_host(nvme: str | None = None) -> HostFacts:
    """Main memory and cores of this machine, and the free space below ``nvme``."""
    return HostFacts(
        memory_bytes=memory_bytes(),
        cores=os.cpu_count(),
        nvme_path=nvme,
        nvme_bytes=free_bytes(nvme) if nvme else None,
    )


def cards_here() -> list[tuple[str, int]]:
    """(name, bytes) of each card of this machine, as nvidia-smi tells; empty without it.

    Where CUDA_VISIBLE_DEVICES shows some of them, as many: they are taken to be alike.
    """
    program, shown = shutil.which("nvidia-smi"), _shown()
    if program is None or shown == 0:
        return []
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = (line.rsplit(",", 1) for line in told.stdout.splitlines() if told.returncode == 0)
    return [
        (row[0].strip(), int(row[1]) * MIB)
        for row in rows
        if len(row) == 2 and row[1].strip().isdecimal()
    ][:shown]


def _shown() -> int | None:
    """How many cards CUDA shows to a program that is started now; None: all."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return None
    return sum(each.strip() not in ("", "-1") for each in shown.split(","))


def memory_bytes() -> int | None:
    """Installed main memory in bytes; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    total = next((line for line in lines if line.startswith("MemTotal:")), None)
    return int(total.split()[1]) * 1024 if total else None


def free_bytes(directory: str) -> int:
    """Free bytes at a directory. Raises FactError when it does not exist here."""
    try:
        return shutil.disk_usage(directory).free
    except OSError as error:
        raise FactError("--nvme", f"{directory}: {error.strerror}; name a directory") from error

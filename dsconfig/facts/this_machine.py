"""This machine: its processor used as a device, its main memory, its disks."""

import os
import shutil
from pathlib import Path

from dsconfig.facts.errors import FactError
from dsconfig.facts.machine import DeviceFacts, HostFacts


def processor(ranks: int = 1) -> DeviceFacts:
    """The CPU as a training device, its memory shared evenly by ``ranks`` processes.

    bf16 and fp16 both work in PyTorch's CPU kernels; rates are not measured, so unknown.
    """
    memory = memory_bytes()
    return DeviceFacts(name="cpu", kind="cpu", memory_bytes=memory // ranks if memory else None)


def host(nvme: str | None = None) -> HostFacts:
    """Main memory and cores of this machine, and the free space below ``nvme``."""
    return HostFacts(
        memory_bytes=memory_bytes(),
        cores=os.cpu_count(),
        nvme_path=nvme,
        nvme_bytes=free_bytes(nvme) if nvme else None,
    )


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

"""Main memory for states: where it comes from, and how much of it there is.

[Note: apart from the heap]
States stay as long as the engine; gradients and activations come and go in every pass. Where both
share the heap the former keep what was between the latter from ever going back to the system, or
from serving anything larger. So whatever of the states is large is mapped by itself. And the C
library gives back by itself only what is free at the end of its heap: of what a step of a model
of 500 MB had freed 160 to 240 MB stayed, other amounts after every step. It is asked for the rest
once a step, which takes milliseconds (``malloc_trim``).
"""

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path

import torch
from torch import Tensor

KIBI, MEBI, GIBI = 2**10, 2**20, 2**30
PROC = Path("/proc")
GROUP = Path("/sys/fs/cgroup")
MAPPED_FROM = 2**17
"""Bytes; where the heap begins to map by itself what it is asked for, until it has freed some."""


def empty_on_host(shape: Sequence[int], *, pin: bool) -> Tensor:
    """Return (*shape,) fp32 elements of undefined value in main memory, page-locked if ``pin``.

    Raises MemoryError where the system refuses them.
    """
    size = 4 * prod(shape)
    with explain_allocation_failure(size, pin=pin):
        if pin or size < MAPPED_FROM:
            return torch.empty(shape, dtype=torch.float32, device="cpu", pin_memory=pin)
        apart = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(apart, dtype=torch.float32).view(*shape)


def empty_on_device_of(part: Tensor, shape: Sequence[int], *, pin: bool) -> Tensor:
    """Return (*shape,) fp32 elements of undefined value where ``part`` is; ``pin`` on the host."""
    if part.device.type != "cpu":
        return torch.empty(shape, dtype=torch.float32, device=part.device)
    return empty_on_host(shape, pin=pin)


def in_same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether both are in the same memory, so that nothing between them has to travel."""
    return one.device == other.device


def trim_heap() -> None:
    """Let the C library return free memory to the system, where it is one that keeps any."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


@contextmanager
def explain_allocation_failure(size: int, *, pin: bool) -> Iterator[None]:
    """Raise MemoryError, with what to do, where the system refuses ``size`` bytes asked for inside.

    torch raises RuntimeErrors of many kinds, some of which tell of a card that has nothing to do
    with it.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        amount = f"{size / MEBI:.4g} MiB of {'page-locked ' if pin else ''}main memory"
        remedy = (
            "set pin_memory of the offload blocks to false, or leave this run more main memory"
            if pin
            else "set zero_optimization.offload_optimizer.device to nvme, or train on more nodes"
        )
        raise MemoryError(f"the system refuses {amount}: {remedy} ({error})") from error


def available_on_node() -> int | None:
    """Bytes that the processes of this node can still take; None where the system does not say.

    Swap counts, and the limit of a container.
    """
    limits = [*_of_system(), *_of_container()]
    return min(limits) if limits else None


def available_in_process() -> int | None:
    """Bytes of data that the limits of this process leave (``ulimit -d``); None without one."""
    try:
        import resource
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    return max(0, limit - _fields(PROC / "self" / "status").get("VmData", 0))


def _of_system() -> Iterator[int]:
    told = _fields(PROC / "meminfo")
    if "MemAvailable" in told:
        yield told["MemAvailable"] + told.get("SwapFree", 0)


def _of_container() -> Iterator[int]:
    try:
        limit, used = ((GROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        told = (line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        cached = sum(int(count) for name, count in told if name in ("active_file", "inactive_file"))
        yield max(0, int(limit) - int(used) + cached)
    except (OSError, ValueError):  # no such group, or "max": no limit
        return


def _fields(path: Path) -> dict[str, int]:
    """Bytes by name from lines such as ``MemAvailable:  1024 kB``."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    parts = (line.replace(":", " ").split() for line in lines if line.endswith(" kB"))
    return {name: int(count) * KIBI for name, count, _ in parts}

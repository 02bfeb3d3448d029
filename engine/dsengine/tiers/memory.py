"""Host memory for states: allocation and limits.

[Note: separate from the heap]
States live as long as the engine; gradients and activations are allocated and freed in every step.
In a shared heap, states between them would keep freed memory from being returned to the system or
reused for larger blocks. So large state tensors are mapped separately. Also, the C library by
itself returns only free memory at the end of its heap: after a step of a 500 MB model, 160 to 240
MB remained. ``malloc_trim`` returns the rest once per step, which takes milliseconds.
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
"""Bytes; glibc's initial threshold for mapping an allocation separately."""


def can_pin() -> bool:
    """Whether host memory can be page-locked, for copies to and from this machine's GPU."""
    return torch.cuda.is_available()


def empty_on_host(shape: Sequence[int], *, pin: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return an uninitialized tensor in host memory, page-locked if ``pin``.

    Raises MemoryError if the system refuses it.
    """
    size = dtype.itemsize * prod(shape)
    with explain_allocation_failure(size, pin=pin):
        if pin or size < MAPPED_FROM:
            return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=pin)
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(mapping, dtype=dtype).view(*shape)


def empty_on_device_of(
    part: Tensor, shape: Sequence[int], *, pin: bool, dtype: torch.dtype
) -> Tensor:
    """Return an uninitialized tensor on ``part``'s device; ``pin`` applies on the host."""
    if part.device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=part.device)
    return empty_on_host(shape, pin=pin, dtype=dtype)


def is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def in_same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether both tensors are in the same memory, so that no transfer is needed."""
    return one.device == other.device


def trim_heap() -> None:
    """Return free heap memory to the system, if the C library supports it."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


@contextmanager
def explain_allocation_failure(size: int, *, pin: bool) -> Iterator[None]:
    """Raise MemoryError with a suggested fix if an allocation of ``size`` bytes inside fails.

    torch raises various RuntimeErrors, some of which name an unrelated GPU.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:
        amount = f"{size / MEBI:.4g} MiB of {'page-locked ' if pin else ''}host memory"
        fix = (
            "set pin_memory of the offload blocks to false, or free host memory for this run"
            if pin
            else "set zero_optimization.offload_optimizer.device to nvme, or train on more nodes"
        )
        raise MemoryError(f"cannot allocate {amount}: {fix} ({error})") from error


def available_on_node() -> int | None:
    """Return the bytes that processes of this node can still allocate; None if unknown.

    Includes swap, and respects a container's limit.
    """
    limits = [*_of_system(), *_of_container()]
    return min(limits) if limits else None


def available_in_process() -> int | None:
    """Return the bytes that this process's limit (``ulimit -d``) leaves; None without a limit."""
    try:
        import resource
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    return max(0, limit - _fields(PROC / "self" / "status").get("VmData", 0))


def _of_system() -> Iterator[int]:
    fields = _fields(PROC / "meminfo")
    if "MemAvailable" in fields:
        yield fields["MemAvailable"] + fields.get("SwapFree", 0)


def _of_container() -> Iterator[int]:
    try:
        limit, used = ((GROUP / f"memory.{name}").read_text() for name in ("max", "current"))
        fields = (line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        cached = sum(
            int(count) for name, count in fields if name in ("active_file", "inactive_file")
        )
        yield max(0, int(limit) - int(used) + cached)
    except (OSError, ValueError):  # no such group, or "max", which is no limit
        return


def _fields(path: Path) -> dict[str, int]:
    """Return bytes by name from lines such as ``MemAvailable:  1024 kB``."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    parts = (line.replace(":", " ").split() for line in lines if line.endswith(" kB"))
    return {name: int(count) * KIBI for name, count, _ in parts}

"""The answer of the estimator: bytes by component, each with its cause and its lifetime."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class Phase(StrEnum):
    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Component:
    """Bytes per rank held during ``phases``; ``pointer`` is the config key that causes them.

    ``formula`` says in words how the number comes about.
    """

    name: str
    bytes: int
    pointer: str
    formula: str
    phases: tuple[Phase, ...] = tuple(Phase)
    pinned: bool = False
    """Page-locked, in main memory."""
    piece: int | None = None
    """Bytes of each page-locked tensor of it but the last; None: it is one."""


MARGIN, OUTSIDE = "allocator's margin", "outside the allocator"
MOVED = "moved to the host"
"""On a CPU: the same memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One rank's device. Allocated bytes by component; the peak is a maximum over phases.

    ``reserved_bytes`` adds the allocator's rounding; ``visible_bytes`` is what nvidia-smi
    shows (context and communicators added). On a CPU there is neither; there ``visible_bytes``
    adds the rank's share of what is moved to the host, which is the same memory.
    """

    components: tuple[Component, ...]
    phase_bytes: Mapping[Phase, int]
    peak_bytes: int
    peak_phase: Phase
    reserved_bytes: int
    visible_bytes: int
    needed_bytes: int
    """What a card has to have. Less than is visible where streams have pools of their own: short
    of memory, the allocator gives back every segment that is free, whosever it was, and asks once
    more (``release_cached_blocks`` in PyTorch's CUDACachingAllocator.cpp)."""
    least_needed_bytes: int
    most_needed_bytes: int
    """The same with the fewest and the most fragments that are known."""
    end_bytes: Mapping[Phase, int] = field(default_factory=lambda: MappingProxyType({}))
    """Bytes still held when each phase ends."""
    low_bytes: int | None = None
    high_bytes: int | None = None
    """The range the peak lies in where something was assumed; None where it is exact."""

    @property
    def beside_peak(self) -> dict[str, int]:
        """Bytes by name that have to fit beside what is allocated at the peak."""
        if self.reserved_bytes == self.peak_bytes:
            moved = self.visible_bytes - self.peak_bytes
            return {MOVED: moved} if moved else {}
        outside = self.visible_bytes - self.reserved_bytes
        return {MARGIN: self.needed_bytes - outside - self.peak_bytes, OUTSIDE: outside}


@dataclass(frozen=True, slots=True, kw_only=True)
class TierMemory:
    """Host memory or NVMe, bytes per node, by component."""

    components: tuple[Component, ...] = ()
    bytes: int = 0
    """What is held while it trains, as tensors count it."""
    peak_bytes: int = 0
    """The most at any moment, the building of the model and what is added to page-locked tensors
    included."""
    pinned_bytes: int = 0
    """Page-locked part, with what is added by rounding up to powers of two (host only)."""
    rounding_bytes: int = 0
    """What that adds to ``bytes``."""

    @property
    def is_building_worst(self) -> bool:
        """Whether more is held while the model is built than in training."""
        return self.peak_bytes > self.bytes + self.rounding_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One card against one run. ``fits`` with as many fragments as there are as a rule;
    ``may_fit`` with the fewest that are known."""

    device: str
    memory_bytes: int
    fits: bool
    may_fit: bool
    headroom_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Seconds of one optimizer step, its parts, and between which bounds it is expected.

    ``mfu``: the share of the card's rate that goes to the model; None where the rate is unknown.
    """

    seconds: float
    low_seconds: float
    high_seconds: float
    compute_seconds: float
    communication_seconds: float
    offload_seconds: float
    bubble_seconds: float
    tokens_per_second_per_gpu: float
    mfu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One choice of stage and offload, priced."""

    stage: int
    offload_optimizer: str
    offload_param: str
    device: DeviceMemory
    host: TierMemory
    nvme: TierMemory
    bucket_rule_bytes: int
    """The documented bound: (allgather + reduce bucket) x 2 bytes x (4.5 with overlap, else 1)."""
    bucket_allocated_bytes: int
    """What the runtime really allocates for communication buckets."""
    fits: tuple[Fit, ...] = ()
    step: Step | None = None
    """None where the batch is not settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """``inputs`` are the facts and choices that went in, ready for JSON."""

    options: tuple[Option, ...]
    inputs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

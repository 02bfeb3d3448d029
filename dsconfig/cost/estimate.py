"""The result of the estimator: bytes by component, each with its cause and lifetime."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from dsconfig.report import writers
from dsconfig.report.sizes import gib, size


class Phase(StrEnum):
    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Component:
    """Bytes per rank held during ``phases``; ``pointer`` is the config key that causes them.

    ``formula`` explains how the number is computed.
    """

    name: str
    bytes: int
    pointer: str
    formula: str
    phases: tuple[Phase, ...] = tuple(Phase)
    pinned: bool = False
    """Page-locked host memory."""
    piece: int | None = None
    """Bytes of each page-locked tensor but the last; None for a single tensor."""


MARGIN, OUTSIDE = "allocator overhead", "outside the allocator"
MOVED = "offloaded to the host"
"""On a CPU: the same memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of one rank's device: allocated bytes by component; the peak is a maximum over phases.

    ``reserved_bytes`` adds the allocator's overhead; ``visible_bytes`` is what nvidia-smi shows
    (context and communicators added). A CPU has neither; there ``visible_bytes`` adds the rank's
    share of offloaded data, which is in the same memory.
    """

    components: tuple[Component, ...]
    phase_bytes: Mapping[Phase, int]
    peak_bytes: int
    peak_phase: Phase
    reserved_bytes: int
    visible_bytes: int
    needed_bytes: int
    """Memory required on a GPU. Less than ``visible_bytes`` if streams have their own pools: when
    memory runs out, the allocator releases every free segment of every stream and retries
    (``release_cached_blocks`` in PyTorch's CUDACachingAllocator.cpp)."""
    least_needed_bytes: int
    most_needed_bytes: int
    """The same with the least and the most fragmentation published."""
    end_bytes: Mapping[Phase, int] = field(default_factory=lambda: MappingProxyType({}))
    """Bytes still allocated at the end of each phase."""
    low_bytes: int | None = None
    high_bytes: int | None = None
    """Range of the peak if something was assumed; None if it is exact."""

    def __repr__(self) -> str:
        return f"<DeviceMemory: {size(self.needed_bytes)}, peak in {self.peak_phase}>"

    @property
    def beside_peak(self) -> dict[str, int]:
        """Return the bytes by name that must fit besides the allocated peak."""
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
    """Bytes in use while training, counted by tensor."""
    peak_bytes: int = 0
    """Maximum at any time, including building the model and rounding of page-locked tensors."""
    pinned_bytes: int = 0
    """Page-locked bytes, rounded up to powers of two (host only)."""
    rounding_bytes: int = 0
    """What the rounding adds to ``bytes``."""

    def __repr__(self) -> str:
        return f"<TierMemory: {size(self.bytes)}, at most {size(self.peak_bytes)}>"

    @property
    def is_building_worst(self) -> bool:
        """Whether building the model needs more than training."""
        return self.peak_bytes > self.bytes + self.rounding_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One device against one run. ``fits`` assumes usual fragmentation, ``may_fit`` the least
    published."""

    device: str
    memory_bytes: int
    fits: bool
    may_fit: bool
    headroom_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """Seconds of one optimizer step, by component, with the expected range.

    ``mfu``: model FLOPs utilization; None if the device's peak rate is unknown.
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
    """The estimate for one choice of stage and offload."""

    stage: int
    offload_optimizer: str
    offload_param: str
    device: DeviceMemory
    host: TierMemory
    nvme: TierMemory
    bucket_rule_bytes: int
    """The documented bound: (allgather + reduce bucket) x 2 bytes x (4.5 with overlap, else 1)."""
    bucket_allocated_bytes: int
    """Bytes actually allocated for communication buckets."""
    fits: tuple[Fit, ...] = ()
    step: StepEstimate | None = None
    """None if the batch size is not resolved."""

    def __repr__(self) -> str:
        tiers = f"offload_optimizer={self.offload_optimizer}, offload_param={self.offload_param}"
        return f"<Option: stage {self.stage}, {tiers}, {self.device!r}, host={self.host!r}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """``inputs`` are the facts and choices that went in, ready for JSON."""

    options: tuple[Option, ...]
    inputs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __repr__(self) -> str:
        options = [
            f"stage {each.stage} needs {size(each.device.needed_bytes)}" for each in self.options
        ]
        listed = "; ".join(options[:SHOWN_OPTIONS]) + (
            ", ..." if len(options) > SHOWN_OPTIONS else ""
        )
        return f"<Estimate: {listed} per GPU>"

    def _repr_html_(self) -> str:
        rows = (
            (
                option.stage,
                option.offload_optimizer,
                option.offload_param,
                gib(option.device.needed_bytes),
                gib(option.host.peak_bytes),
                "-" if option.step is None else f"{option.step.seconds:.3g} s",
                ", ".join(fit.device for fit in option.fits if fit.fits) or "-",
            )
            for option in self.options
        )
        columns = ("stage", "optimizer on", "parameters on", "per GPU", "host per node")
        return writers.html_table(
            "Estimate: memory required per configuration",
            (*columns, "step", "fits on"),
            rows,
        )


SHOWN_OPTIONS = 3
"""Options in the representation of an estimate."""

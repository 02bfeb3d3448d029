"""The Plan: the only thing an engine is given. Frozen, serialisable."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from dsconfig.mesh import Mesh
from dsconfig.runtimes.effective import Batch, Effective

FORMAT_VERSION = "1.0"


class Status(StrEnum):
    HONOURED = "honoured"
    INERT = "inert"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What becomes of one key the user set: ``by`` names the mechanism, or says why not."""

    pointer: str
    status: Status
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSchedule:
    """One sharding unit with its place in the schedule.

    ``gather``: the parameters are gathered around their use (else whole at rest).
    ``reshard_after_forward``: freed between forward and backward; an int reshards to a
    smaller group. ``prefetch``: indices of the units gathered ahead while this one computes.
    """

    modules: tuple[str, ...]
    elements: int
    gather: bool
    reshard_after_forward: bool | int
    prefetch: tuple[int, ...] = ()


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One training run, decided.

    ``effective`` holds every concrete setting (precision, optimizer, tiers, reporting ...).
    ``memory`` and ``traffic`` are what is expected, in bytes per rank; ``coverage`` has one
    row for every key the user set.
    """

    runtime: str
    mesh: Mesh
    batch: Batch
    effective: Effective
    units: tuple[UnitSchedule, ...] = ()
    model: str | None = None
    model_elements: int | None = None
    memory: Mapping[str, Any] = field(default_factory=_empty)
    traffic: Mapping[str, Any] = field(default_factory=_empty)
    coverage: tuple[Coverage, ...] = ()
    format_version: str = FORMAT_VERSION

    def to_json(self) -> str:
        """The plan as JSON text, complete enough for :meth:`from_json`."""
        from dsconfig.planner.serialise import to_json

        return to_json(self)

    @staticmethod
    def from_json(text: str) -> "Plan":
        """Read a plan again. Raises ValueError when the text is not a plan of this format."""
        from dsconfig.planner.serialise import from_json

        return from_json(text)

"""Plan: the only input of an engine; frozen, and equal after a JSON round trip."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dsconfig.features.table import Status
from dsconfig.mesh import Mesh
from dsconfig.report import writers
from dsconfig.report.sizes import counted
from dsconfig.runtimes.effective import Batch, Effective, Offload, Tier
from dsconfig.runtimes.storage import Storage
from dsconfig.unit_schedule import PlannedUnit

FORMAT_VERSION = "4.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How one key of the config is handled: ``by`` is the mechanism or the reason."""

    pointer: str
    status: Status
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A pipeline stage: the sharding units of its layers, empty at ZeRO stage 0."""

    units: tuple[PlannedUnit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Complete description of a training run.

    ``effective`` has all concrete settings (precision, optimizer, tiers, reporting ...), with the
    defaults of the DeepSpeed ``release``; ``storage`` what they decide together with the mesh.
    ``memory`` and ``traffic`` are estimates in bytes per
    rank; ``coverage`` has one row per key of the config. Fields that depend on the model are empty
    if the plan was made without one; ``complete`` fills them in.
    """

    runtime: str
    release: str
    nodes: int
    mesh: Mesh
    effective: Effective
    storage: Storage
    coverage: tuple[Coverage, ...]
    model: str | None = None
    model_elements: int | None = None
    stages: tuple[PlannedStage, ...] = (PlannedStage(),)
    memory: Mapping[str, Any] = field(default_factory=dict[str, Any])
    traffic: Mapping[str, int] = field(default_factory=dict[str, int])
    step: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])

    def __repr__(self) -> str:
        return f"<Plan: {self.summary}, digest {self.digest[:12]}>"

    def _repr_html_(self) -> str:
        rows = ((row.pointer, row.status.label, row.by) for row in self.coverage)
        return writers.html_table(
            f"Plan: {self.summary}", ("key", "status", "implementation"), rows
        )

    @property
    def summary(self) -> str:
        """Ranks, stage, precision and batch size."""
        settings, batch = self.effective, self.batch
        return (
            f"{counted(self.mesh.world_size, 'rank')}, ZeRO stage {settings.zero.stage}, "
            f"{settings.numerics.precision}, global batch {batch.global_batch}"
        )

    @property
    def batch(self) -> Batch:
        assert self.effective.batch is not None, "make_plan requires a batch"
        return self.effective.batch

    @property
    def digest(self) -> str:
        """Hash of all decisions: ranks with equal digests execute the same plan."""
        return _digest_of(_adapter().dump_python(self))

    def to_json(self) -> str:
        """Return the plan as JSON text for :meth:`from_json`."""
        return json.dumps(to_dict(self), indent=2)

    @staticmethod
    def from_json(text: str) -> "Plan":
        """Read a plan, equal to the one that was written.

        Raises ValueError if the text is not a plan or was edited, because derived values would be
        inconsistent.
        """
        data = _plan_data(text)
        if data is None:
            raise ValueError("not a plan: create one with `dsconfig plan FILE -o plan.json`")
        written = str(data["format_version"])
        if written.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
            raise ValueError(
                f"plan format {written} is not supported (expected {FORMAT_VERSION}): plan again"
            )
        try:
            plan = _adapter().validate_python(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"incomplete plan: {place}: {first['msg']}; plan again") from None
        for name, value in to_dict(plan).items():
            if _canonical(data.get(name)) != _canonical(value):
                raise ValueError(
                    f"the plan was edited or created by another release of dsconfig ({name!r} "
                    "differs): change the config and plan again"
                )
        return plan


def _digest_of(fields: Any) -> str:
    return sha256(_canonical(fields).encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def is_plan(text: str) -> bool:
    """Return whether a text is a plan (of any format version), not a config."""
    return _plan_data(text) is not None


def to_dict(plan: Plan) -> dict[str, Any]:
    """Return the JSON form of a plan: its fields and, on top, a summary."""
    settled, zero = plan.effective, plan.effective.zero
    data = json.loads(json.dumps(_adapter().dump_python(plan)))
    effective = data["effective"]
    size = {"world_size": plan.mesh.world_size, "data_parallel": plan.mesh.data_parallel}
    return {
        "format_version": FORMAT_VERSION,
        "digest": plan.digest,
        **data,
        "mesh": data["mesh"] | size,
        "stage": zero.stage,
        "precision": str(settled.numerics.precision),
        **{name: effective[name] for name in _SHOWN},
        "tiers": {
            "optimizer": _tier(zero.offload_optimizer, effective["zero"]["offload_optimizer"]),
            "parameters": _tier(zero.offload_param, effective["zero"]["offload_param"]),
        },
        "monitors": effective["reporting"]["monitors"],
    }


_SHOWN = ("batch", "optimizer", "scheduler", "activation_checkpointing", "checkpointing")
"""Parts of the effective config repeated at top level."""


def _tier(offload: Offload | None, written: dict[str, Any] | None) -> dict[str, Any]:
    return {"tier": str(Tier.DEVICE)} if offload is None or written is None else written


def _plan_data(text: str) -> dict[str, Any] | None:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and "format_version" in data else None  # pyright: ignore[reportUnknownVariableType]


@cache
def _adapter() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)

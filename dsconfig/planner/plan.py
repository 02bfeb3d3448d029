"""The Plan: the only thing an engine is given. Frozen, and the same again when read from JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dsconfig.mesh import Mesh
from dsconfig.runtimes.effective import Batch, Effective, Offload, Tier

FORMAT_VERSION = "2.0"


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
class PlannedUnit:
    """One sharding unit with its place in the schedule.

    ``gather``: the parameters are gathered around their use (else whole at rest).
    ``reshard_after_forward``: freed between forward and backward; an int reshards to a
    smaller group. ``prefetch``: indices of the units gathered ahead while this one computes.
    """

    modules: tuple[str, ...]
    elements: int
    gather: bool = False
    reshard_after_forward: bool | int = False
    prefetch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One training run, decided.

    ``effective`` holds every concrete setting (precision, optimizer, tiers, reporting ...), with
    the defaults of ``release``, DeepSpeed's. ``memory`` and ``traffic`` are what is expected, in
    bytes per rank; ``coverage`` has one row for every key the user set. What depends on the
    tensors of a model is empty where the plan was made without one; ``complete`` fills it in.
    """

    runtime: str
    release: str
    nodes: int
    mesh: Mesh
    effective: Effective
    coverage: tuple[Coverage, ...]
    model: str | None = None
    model_elements: int | None = None
    units: tuple[PlannedUnit, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict[str, Any])
    traffic: Mapping[str, int] = field(default_factory=dict[str, int])
    step: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])

    @property
    def batch(self) -> Batch:
        assert self.effective.batch is not None, "a plan is made of a settled batch only"
        return self.effective.batch

    @property
    def digest(self) -> str:
        """A hash of all that is decided: ranks with the same digest do the same."""
        return sha256(_canonical(_adapter().dump_python(self)).encode()).hexdigest()

    def to_json(self) -> str:
        """The plan as JSON text, complete enough for :meth:`from_json`."""
        return json.dumps(to_dict(self), indent=2)

    @staticmethod
    def from_json(text: str) -> "Plan":
        """Read a plan again, equal to the one that was written.

        Raises ValueError when the text is no plan of this format, or was changed since: what
        is derived in it belongs together.
        """
        data = _plan_data(text)
        if data is None:
            raise ValueError("not a plan: write one with `dsconfig plan FILE -o plan.json`")
        written = str(data["format_version"])
        if written.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
            raise ValueError(
                f"a plan of format {written}; this release reads {FORMAT_VERSION}: plan again"
            )
        try:
            plan = _adapter().validate_python(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"not a whole plan: {place}: {first['msg']}; plan again") from None
        differing = [
            name
            for name, value in to_dict(plan).items()
            if _canonical(data.get(name)) != _canonical(value)
        ]
        if differing:
            raise ValueError(
                f"the plan was changed after it was made (see {differing[0]!r}), or by another "
                "release of dsconfig: change the config and plan again"
            )
        return plan


def is_plan(text: str) -> bool:
    """Whether a file that may be a config is a plan, of whatever format."""
    return _plan_data(text) is not None


def to_dict(plan: Plan) -> dict[str, Any]:
    """The JSON shape of a plan: its fields, and above them what most readers look for."""
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
"""Parts of the effective config that stand at the top as well."""


def _canonical(value: Any) -> str:
    """The same text for what is the same in JSON; infinities stay what they are."""
    return json.dumps(value, sort_keys=True)


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

"""A Plan as JSON, and back. The concrete config travels along, so that nothing is lost."""

import json
from dataclasses import asdict
from typing import Any

from dsconfig.mesh import Mesh
from dsconfig.planner.model import FORMAT_VERSION, Coverage, Plan, Status, UnitSchedule
from dsconfig.runtimes.effective import Batch, Effective, Offload, Tier, effective


def to_dict(plan: Plan) -> dict[str, Any]:
    """The JSON shape of a plan: plain data, stable names."""
    settled = plan.effective
    return {
        "format_version": plan.format_version,
        "runtime": plan.runtime,
        "mesh": asdict(plan.mesh),
        "stage": settled.zero.stage,
        "precision": str(settled.numerics.precision),
        "batch": asdict(plan.batch),
        "model": plan.model,
        "model_elements": plan.model_elements,
        "units": [asdict(unit) for unit in plan.units],
        "optimizer": _named(settled.optimizer),
        "scheduler": _named(settled.scheduler),
        "tiers": _tiers(settled),
        "activation_checkpointing": asdict(settled.activation_checkpointing),
        "checkpointing": asdict(settled.checkpointing),
        "monitors": {name: dict(block) for name, block in settled.reporting.monitors.items()},
        "memory": dict(plan.memory),
        "traffic": dict(plan.traffic),
        "coverage": [asdict(row) for row in plan.coverage],
        "config": _plain(settled.config),
    }


def to_json(plan: Plan) -> str:
    return json.dumps(to_dict(plan), indent=2)


def from_json(text: str) -> Plan:
    """Read a plan again. Raises ValueError when it is not one, or of a newer major format."""
    data = json.loads(text)
    if not isinstance(data, dict) or "format_version" not in data:
        raise ValueError("not a plan: format_version is missing; write one with `dsconfig plan`")
    major = str(data["format_version"]).partition(".")[0]  # pyright: ignore[reportUnknownArgumentType]
    if major != FORMAT_VERSION.partition(".")[0]:
        raise ValueError(f"a plan of format {major}.x; this version reads {FORMAT_VERSION}")
    return _plan(data)  # pyright: ignore[reportUnknownArgumentType]


def _plan(data: dict[str, Any]) -> Plan:
    from dataclasses import replace

    batch = Batch(**data["batch"])
    settled = replace(effective(data["config"]), batch=batch)
    return Plan(
        runtime=data["runtime"],
        mesh=Mesh(**data["mesh"]),
        batch=batch,
        effective=settled,
        units=tuple(_unit(unit) for unit in data["units"]),
        model=data["model"],
        model_elements=data["model_elements"],
        memory=data["memory"],
        traffic=data["traffic"],
        coverage=tuple(
            Coverage(pointer=row["pointer"], status=Status(row["status"]), by=row["by"])
            for row in data["coverage"]
        ),
        format_version=data["format_version"],
    )


def _unit(data: dict[str, Any]) -> UnitSchedule:
    return UnitSchedule(
        modules=tuple(data["modules"]),
        elements=data["elements"],
        gather=data["gather"],
        reshard_after_forward=data["reshard_after_forward"],
        prefetch=tuple(data["prefetch"]),
    )


def _named(named: Any) -> dict[str, Any] | None:
    return None if named is None else {"type": named.type, "params": _plain(named.params)}


def _tiers(settled: Effective) -> dict[str, Any]:
    def tier(offload: Offload | None) -> dict[str, Any]:
        return {"tier": str(Tier.DEVICE)} if offload is None else asdict(offload)

    return {
        "optimizer": tier(settled.zero.offload_optimizer),
        "parameters": tier(settled.zero.offload_param),
    }


def _plain(value: Any) -> Any:
    """Mappings and tuples as dicts and lists, so that any JSON writer takes them."""
    if hasattr(value, "items"):
        return {str(name): _plain(child) for name, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]  # pyright: ignore[reportUnknownVariableType]
    return value

"""The Plan: one training run, decided."""

from dsconfig.mesh import Mesh
from dsconfig.planner.model import Coverage, Plan, Status, UnitSchedule
from dsconfig.planner.plan import PlanError, make_plan
from dsconfig.planner.serialise import from_json, to_dict, to_json

__all__ = [
    "Coverage",
    "Mesh",
    "Plan",
    "PlanError",
    "Status",
    "UnitSchedule",
    "from_json",
    "make_plan",
    "to_dict",
    "to_json",
]

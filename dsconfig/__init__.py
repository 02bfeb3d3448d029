"""The compiler for ds_config: read, validate, resolve, estimate, plan.

    doc  = dsconfig.read("ds.json")
    rep  = dsconfig.validate(doc)
    res  = dsconfig.resolve(doc, facts)
    est  = dsconfig.estimate(res, facts)
    plan = dsconfig.plan(res, facts)

Names are loaded on first use, so that a program pays only for what it calls.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsconfig.api import complete, estimate, plan, read, resolve, validate
    from dsconfig.cost.estimate import Estimate
    from dsconfig.facts import (
        Architecture,
        DeviceFacts,
        Facts,
        HostFacts,
        ModelTree,
        ModuleFact,
        TensorFact,
        TrainingFacts,
        architecture_of,
        gather,
    )
    from dsconfig.planner.plan import Coverage, Plan, Status, UnitSchedule
    from dsconfig.report import Diagnostic, Effect, Report, Severity
    from dsconfig.resolver.resolution import LedgerEntry, Resolution
    from dsconfig.runtimes.effective import Effective
    from dsconfig.schema.optimizers import OPTIMIZER_CLASSES, OPTIMIZERS, optimizer_type
    from dsconfig.source import Document

__version__ = "0.1.0"

_HOME_OF = {
    "dsconfig.api": ("read", "validate", "resolve", "estimate", "plan", "complete"),
    "dsconfig.facts": (
        "Architecture",
        "DeviceFacts",
        "Facts",
        "HostFacts",
        "ModelTree",
        "ModuleFact",
        "TensorFact",
        "TrainingFacts",
        "architecture_of",
        "gather",
    ),
    "dsconfig.cost.estimate": ("Estimate",),
    "dsconfig.planner.plan": ("Coverage", "Plan", "Status", "UnitSchedule"),
    "dsconfig.report": ("Diagnostic", "Effect", "Report", "Severity"),
    "dsconfig.resolver.resolution": ("LedgerEntry", "Resolution"),
    "dsconfig.runtimes.effective": ("Effective",),
    "dsconfig.schema.optimizers": ("OPTIMIZERS", "OPTIMIZER_CLASSES", "optimizer_type"),
    "dsconfig.source": ("Document",),
}
_MODULE_OF = {name: module for module, names in _HOME_OF.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dsconfig' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


__all__ = [
    "OPTIMIZERS",
    "OPTIMIZER_CLASSES",
    "Architecture",
    "Coverage",
    "DeviceFacts",
    "Diagnostic",
    "Document",
    "Effect",
    "Effective",
    "Estimate",
    "Facts",
    "HostFacts",
    "LedgerEntry",
    "ModelTree",
    "ModuleFact",
    "Plan",
    "Report",
    "Resolution",
    "Severity",
    "Status",
    "TensorFact",
    "TrainingFacts",
    "UnitSchedule",
    "__version__",
    "architecture_of",
    "complete",
    "estimate",
    "gather",
    "optimizer_type",
    "plan",
    "read",
    "resolve",
    "validate",
]

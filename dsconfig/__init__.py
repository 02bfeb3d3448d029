"""The compiler for ds_config: read, validate, resolve, estimate, plan.

    doc  = dsconfig.read("ds.json")
    rep  = dsconfig.validate(doc)
    res  = dsconfig.resolve(doc, facts)
    est  = dsconfig.estimate(res, facts)
    plan = dsconfig.plan(res, facts)

Names are loaded on first use, so that a program pays only for what it calls.
"""

from typing import TYPE_CHECKING

from dsconfig import hostfile, launch_env, tiles
from dsconfig.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from dsconfig.api import complete, estimate, plan, read, replan, resolve, validate
    from dsconfig.cost.compat import (
        zero2_model_states,
        zero2_table,
        zero3_model_states,
        zero3_table,
    )
    from dsconfig.cost.estimate import Estimate
    from dsconfig.cost.host_memory_fixes import ways_to_fit
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
    from dsconfig.planner.plan import Coverage, Plan, PlannedUnit, Status
    from dsconfig.report import Diagnostic, Effect, Report, Severity
    from dsconfig.resolver.resolution import LedgerEntry, Resolution
    from dsconfig.runtimes.effective import Effective
    from dsconfig.runtimes.typed_block import block_values, config_values
    from dsconfig.schema.optimizers import OPTIMIZER_CLASSES, OPTIMIZERS, optimizer_type
    from dsconfig.source import Document

__version__ = "0.1.0"

__getattr__ = lazy_attributes(
    __name__,
    {
        "api": ("read", "validate", "resolve", "estimate", "plan", "complete", "replan"),
        "facts": (
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
        "cost.compat": (
            "zero2_model_states",
            "zero2_table",
            "zero3_model_states",
            "zero3_table",
        ),
        "cost.estimate": ("Estimate",),
        "cost.host_memory_fixes": ("ways_to_fit",),
        "planner.plan": ("Coverage", "Plan", "Status", "PlannedUnit"),
        "report": ("Diagnostic", "Effect", "Report", "Severity"),
        "resolver.resolution": ("LedgerEntry", "Resolution"),
        "runtimes.effective": ("Effective",),
        "runtimes.typed_block": ("block_values", "config_values"),
        "schema.optimizers": ("OPTIMIZERS", "OPTIMIZER_CLASSES", "optimizer_type"),
        "source": ("Document",),
    },
)

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
    "PlannedUnit",
    "Report",
    "Resolution",
    "Severity",
    "Status",
    "TensorFact",
    "TrainingFacts",
    "__version__",
    "architecture_of",
    "block_values",
    "complete",
    "config_values",
    "estimate",
    "gather",
    "hostfile",
    "launch_env",
    "optimizer_type",
    "plan",
    "read",
    "replan",
    "resolve",
    "tiles",
    "validate",
    "ways_to_fit",
    "zero2_model_states",
    "zero2_table",
    "zero3_model_states",
    "zero3_table",
]

"""Check, complete and estimate DeepSpeed configs (ds_config), as on the command line.

A config is a path, a string or a dict. Facts describe the run: GPUs, model, training arguments.

    import dsconfig

    report = dsconfig.validate("ds.json", runtime="transformers")
    for finding in report.errors:
        print(finding.code, finding.pointer, finding.message, finding.help)

    facts = dsconfig.gather(gpus=8, device="a100-80gb", model="llama-3-8b", seq_len=4096)
    resolution = dsconfig.resolve("ds.json", facts)          # replaces every "auto"
    estimate = dsconfig.estimate(resolution, facts)          # memory and step time
    plan = dsconfig.plan(resolution, facts)                  # the input of dsengine
    dsconfig.capabilities("optimizer")["LBFGS"]              # what dsengine supports

    dsconfig.tune(facts)[0].config                           # the fastest config that fits
    print(dsconfig.explain("overlap_comm"))                  # a key, or a rule such as DSC404
    dsconfig.diff("old.json", "new.json")                    # differences in meaning
    dsconfig.diagnose("train.log").failures                  # why a run failed

Functions that take a config never raise for an invalid one: findings are in ``report.diagnostics``
and ``resolution.diagnostics``. Wrong arguments raise ValueError or TypeError. Reports, resolutions,
estimates and plans display as tables in notebooks. Names are imported on first use.
"""

from typing import TYPE_CHECKING

from dsconfig.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from dsconfig import features as features
    from dsconfig import hostfile as hostfile
    from dsconfig import launch_env as launch_env
    from dsconfig import pipelines as pipelines
    from dsconfig import tiles as tiles
    from dsconfig.api import capabilities as capabilities
    from dsconfig.api import complete as complete
    from dsconfig.api import diagnose as diagnose
    from dsconfig.api import diff as diff
    from dsconfig.api import estimate as estimate
    from dsconfig.api import explain as explain
    from dsconfig.api import plan as plan
    from dsconfig.api import read as read
    from dsconfig.api import replan as replan
    from dsconfig.api import resolve as resolve
    from dsconfig.api import tune as tune
    from dsconfig.api import validate as validate
    from dsconfig.cost.compat import zero2_model_states as zero2_model_states
    from dsconfig.cost.compat import zero2_table as zero2_table
    from dsconfig.cost.compat import zero3_model_states as zero3_model_states
    from dsconfig.cost.compat import zero3_table as zero3_table
    from dsconfig.cost.estimate import Estimate as Estimate
    from dsconfig.cost.host_memory_fixes import ways_to_fit as ways_to_fit
    from dsconfig.cost.weights import packed_layout as packed_layout
    from dsconfig.facts import Architecture as Architecture
    from dsconfig.facts import DeviceFacts as DeviceFacts
    from dsconfig.facts import Facts as Facts
    from dsconfig.facts import HostFacts as HostFacts
    from dsconfig.facts import ModelTree as ModelTree
    from dsconfig.facts import ModuleFact as ModuleFact
    from dsconfig.facts import TensorFact as TensorFact
    from dsconfig.facts import TrainingFacts as TrainingFacts
    from dsconfig.facts import architecture_of as architecture_of
    from dsconfig.facts import gather as gather
    from dsconfig.facts.inputs import FactError as FactError
    from dsconfig.facts.stages import join_stages as join_stages
    from dsconfig.failures.diagnosis import Diagnosis as Diagnosis
    from dsconfig.failures.diagnosis import Failure as Failure
    from dsconfig.features.table import Capability as Capability
    from dsconfig.features.table import Status as Status
    from dsconfig.mesh import Degrees as Degrees
    from dsconfig.mesh import Mesh as Mesh
    from dsconfig.mesh import nearest_degree as nearest_degree
    from dsconfig.planner.build import PlanError as PlanError
    from dsconfig.planner.pipeline import refused_in_pipeline as refused_in_pipeline
    from dsconfig.planner.plan import Coverage as Coverage
    from dsconfig.planner.plan import Plan as Plan
    from dsconfig.planner.plan import PlannedStage as PlannedStage
    from dsconfig.report import Diagnostic as Diagnostic
    from dsconfig.report import Effect as Effect
    from dsconfig.report import Report as Report
    from dsconfig.report import Severity as Severity
    from dsconfig.report.writers import terminal_text as terminal_text
    from dsconfig.resolver.resolution import LedgerEntry as LedgerEntry
    from dsconfig.resolver.resolution import Resolution as Resolution
    from dsconfig.runtimes.effective import Effective as Effective
    from dsconfig.runtimes.typed_block import block_values as block_values
    from dsconfig.runtimes.typed_block import config_values as config_values
    from dsconfig.schema.optimizers import OPTIMIZER_CLASSES as OPTIMIZER_CLASSES
    from dsconfig.schema.optimizers import OPTIMIZERS as OPTIMIZERS
    from dsconfig.schema.optimizers import optimizer_type as optimizer_type
    from dsconfig.source import Document as Document
    from dsconfig.unit_schedule import PlannedUnit as PlannedUnit

__version__ = "0.1.0"

__getattr__, __all__ = lazy_attributes(__name__, "__version__")


def __dir__() -> list[str]:
    """List the public functions, and the types and errors in their signatures and docstrings."""
    functions = [name for name in __all__ if name.islower()]
    return [name for name in (*functions, *_TYPES) if name not in _UNLISTED]


_TYPES = (
    *("Diagnosis", "Document", "Estimate", "FactError", "Facts", "ModelTree", "Plan", "PlanError"),
    *("Report", "Resolution"),
)


_UNLISTED = {
    *("__version__", "features", "hostfile", "join_stages", "launch_env", "nearest_degree"),
    *("packed_layout", "pipelines", "refused_in_pipeline", "terminal_text", "tiles"),
}
"""Public for the engine."""

"""Build a Plan from a Resolution."""

from dataclasses import asdict, replace

from dsconfig.batch import MICRO
from dsconfig.facts import Facts, ModelTree
from dsconfig.facts.naming import named
from dsconfig.facts.stages import tree_of_stage
from dsconfig.lazy_imports import lazy_imports
from dsconfig.mesh import Mesh
from dsconfig.planner.coverage.cover import coverage
from dsconfig.planner.pipeline import refused_in_pipeline
from dsconfig.planner.plan import Plan, PlannedStage
from dsconfig.report import Diagnostic
from dsconfig.resolver.resolution import Resolution
from dsconfig.runtimes.base import runtime_of
from dsconfig.runtimes.capabilities import not_executed
from dsconfig.runtimes.effective import Effective, Zero, mesh_of
from dsconfig.runtimes.storage import storage_of
from dsconfig.schema.version import Version
from dsconfig.unit_schedule import unit_schedule

with lazy_imports():
    from dsconfig.cost import estimator, step_time


class PlanError(ValueError):
    """The config cannot be planned; ``diagnostics`` contain the reasons."""

    def __init__(self, message: str, diagnostics: tuple[Diagnostic, ...] = ()) -> None:
        super().__init__(message)
        self.diagnostics = diagnostics


def make_plan(resolution: Resolution, facts: Facts) -> Plan:
    """Build the plan of a training run.

    ``coverage`` lists keys that the engine refuses; an engine starts only if there are none. Raises
    PlanError if the resolution has errors, batch or world size are unknown, or the engine cannot
    divide the model as requested.
    """
    effective = _settled(resolution)
    if facts.training is not None and facts.training.master_weights is not None:
        raise PlanError(
            f"{named('master_weights')} is for estimates: a plan keeps the master weights of the "
            "config; remove the argument"
        )
    program = runtime_of(resolution.runtime, resolution.version)
    facts = estimator.facts_in_force(effective, facts, program)
    if not program.runs_deepspeed:
        problem = not_executed(program, facts.degrees)
        if problem:
            raise PlanError(
                f"{problem}; use zero_optimization.stage 3 to shard the model, or another program "
                f"({named('runtime')})"
            )
        refused = refused_in_pipeline(effective) if facts.degrees.pipeline > 1 else ""
        if refused:
            raise PlanError(f"{named('pipeline_parallel', facts.degrees.pipeline)}: {refused}")
    mesh = _mesh(effective.zero, facts)
    plan = Plan(
        runtime=resolution.runtime,
        release=str(resolution.version),
        nodes=facts.nodes or 1,
        mesh=mesh,
        effective=effective,
        storage=storage_of(effective, mesh),
        coverage=coverage(effective),
    )
    return complete(plan, facts)


def complete(plan: Plan, facts: Facts) -> Plan:
    """Add what depends on the model of ``facts``: units, estimated memory and traffic.

    Deterministic, and does not change existing decisions, so ranks with the same plan and model
    get the same result. Raises PlanError if the plan was made for another model.
    """
    tree = facts.model
    if tree is None:
        return plan
    planned = [unit for stage in plan.stages for unit in stage.units]
    if planned and tree.root is not None:
        _check_model(plan, tree)
    stages = _stages(plan, tree)
    if planned or (
        plan.model_elements == tree.parameters and not any(stage.units for stage in stages)
    ):
        return plan
    program = runtime_of(plan.runtime, Version.parse(plan.release))
    option = estimator.estimate(plan.effective, facts, runtime=program).options[0]
    time = step_time.step_time(plan.effective, facts, runtime=program)
    return replace(
        plan,
        model=tree.name,
        model_elements=tree.parameters,
        stages=stages,
        memory={
            "peak_bytes": option.device.peak_bytes,
            "visible_bytes": option.device.visible_bytes,
            "needed_bytes": option.device.needed_bytes,
            "least_needed_bytes": option.device.least_needed_bytes,
            "peak_phase": str(option.device.peak_phase),
            "phases": {str(phase): count for phase, count in option.device.phase_bytes.items()},
            "host_bytes": option.host.bytes,
            "host_peak_bytes": option.host.peak_bytes,
            "host_rounding_bytes": option.host.rounding_bytes,
            "nvme_bytes": option.nvme.bytes,
            # Without a sequence length activations are not included.
            "sequence_length": facts.sequence_length,
        },
        traffic=time.traffic,
        step={} if option.step is None or not facts.sequence_length else asdict(option.step),
    )


def _stages(plan: Plan, tree: ModelTree) -> tuple[PlannedStage, ...]:
    """Return the stages with their units, which are open if the model is not divided yet."""
    zero, stages = plan.effective.zero, plan.mesh.pipeline
    if stages == 1:
        return (PlannedStage(units=unit_schedule(zero, tree)),)
    trees = [tree_of_stage(tree, stage) for stage in range(len(tree.stages))]
    units = [unit_schedule(zero, each) for each in trees] or [()] * stages
    return tuple(PlannedStage(units=each) for each in units)


def _mesh(zero: Zero, facts: Facts) -> Mesh:
    ranks, group = facts.data_parallel or 1, zero.mics_shard_size
    if zero.stage > 0 and 0 < group < ranks and ranks % group:
        raise PlanError(
            f"zero_optimization.mics_shard_size = {group} does not divide the"
            f" {ranks} data-parallel ranks; use a divisor"
        )
    return mesh_of(zero, facts)


def _settled(resolution: Resolution) -> Effective:
    if resolution.effective is None:
        refusals = resolution.refusals
        listed = "; ".join(found.cause for found in refusals)
        why = f"the config has errors: {listed}" if refusals else "a value has a wrong type"
        raise PlanError(why, refusals)
    if resolution.effective.batch is None:
        has_micro_batch = type(resolution.config.get(MICRO)) is int
        step = (
            f"specify {named('gpus')}"
            if has_micro_batch
            else f"set {MICRO}, or specify {named('micro_batch')}"
        )
        raise PlanError(f"the batch is not determined: {step}")
    return resolution.effective


def _check_model(plan: Plan, tree: ModelTree) -> None:
    """Raise PlanError unless module names of units and the parameter count match."""
    assert tree.root is not None
    names = {module.name for module in tree.root.walk()}
    units = (unit for stage in plan.stages for unit in stage.units)
    missing = [name for unit in units for name in unit.modules if name not in names]
    if missing or plan.model_elements != tree.parameters:
        absent = f" and no module {missing[0]}" if missing else ""
        raise PlanError(
            f"the plan is for another model: {plan.model} has {plan.model_elements or 0:,} "
            f"parameters, this {tree.name} has {tree.parameters:,}{absent}; plan again with this "
            "model, or without one"
        )

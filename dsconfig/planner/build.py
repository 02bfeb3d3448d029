"""From a Resolution to a Plan."""

from dataclasses import asdict, replace

from dsconfig.facts import Facts, ModelTree
from dsconfig.lazy_imports import lazy_imports
from dsconfig.mesh import Mesh
from dsconfig.planner.coverage import coverage
from dsconfig.planner.plan import Plan
from dsconfig.planner.schedule import traffic, unit_schedule
from dsconfig.report import Diagnostic
from dsconfig.resolver.resolution import Resolution
from dsconfig.runtimes.base import runtime_of
from dsconfig.runtimes.effective import Effective, Zero
from dsconfig.schema.version import Version

with lazy_imports():
    from dsconfig.cost import estimator


class PlanError(ValueError):
    """The config cannot be planned; ``diagnostics`` say why."""

    def __init__(self, message: str, diagnostics: tuple[Diagnostic, ...] = ()) -> None:
        super().__init__(message)
        self.diagnostics = diagnostics


def make_plan(resolution: Resolution, facts: Facts) -> Plan:
    """Decide one training run.

    Keys this engine refuses stand in ``coverage``; an engine starts only without any. Raises
    PlanError when the resolution has errors, or when batch or world size are not settled.
    """
    effective = _settled(resolution)
    plan = Plan(
        runtime=resolution.runtime,
        release=str(resolution.version),
        nodes=facts.nodes or 1,
        mesh=mesh_of(effective.zero, facts),
        effective=effective,
        coverage=coverage(effective),
    )
    return complete(plan, facts)


def complete(plan: Plan, facts: Facts) -> Plan:
    """Add what depends on the model of ``facts``: units, expected memory and traffic.

    Nothing that is decided changes, and every rank that holds the same plan and the same model
    comes to the same one. Raises PlanError when the plan was made for another model.
    """
    tree = facts.model
    if tree is None:
        return plan
    if plan.units and tree.root is not None:
        _insist_on_the_model_of(plan, tree)
    units = unit_schedule(plan.effective.zero, tree)
    if plan.units or (plan.model_elements == tree.parameters and not units):
        return plan
    program = runtime_of(plan.runtime, Version.parse(plan.release))
    option = estimator.estimate(plan.effective, facts, runtime=program).options[0]
    return replace(
        plan,
        model=tree.name,
        model_elements=tree.parameters,
        units=units,
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
            # Without the length of a sample no activations are among them.
            "sequence_length": facts.sequence_length,
        },
        traffic=traffic(units, tree, plan.mesh, plan.effective),
        step={} if option.step is None or not facts.sequence_length else asdict(option.step),
    )


def mesh_of(zero: Zero, facts: Facts) -> Mesh:
    """Which ranks shard and which replicate."""
    ranks, group = facts.data_parallel or 1, zero.mics_shard_size
    if zero.stage > 0 and 0 < group < ranks and ranks % group:
        raise PlanError(
            f"zero_optimization.mics_shard_size = {group} does not divide the"
            f" {ranks} data-parallel ranks; use a divisor"
        )
    return Mesh.over(
        facts.world_size or 1,
        sharded=zero.stage > 0,
        group=group,
        tensor=facts.tensor_parallel,
        sequence=facts.sequence_parallel,
        pipeline=facts.pipeline_parallel,
    )


def _settled(resolution: Resolution) -> Effective:
    if resolution.effective is None:
        refusals = resolution.refusals
        listed = "; ".join(f"{found.code} {found.message}" for found in refusals)
        why = f"the config has errors: {listed}" if refusals else "a value has another type"
        raise PlanError(f"{why}; `dsconfig validate` says where", refusals)
    if resolution.effective.batch is None:
        raise PlanError(
            "the batch is not settled: set train_micro_batch_size_per_gpu, or give --micro-batch"
            " and the number of ranks with --gpus"
        )
    return resolution.effective


def _insist_on_the_model_of(plan: Plan, tree: ModelTree) -> None:
    """By the names of the modules in units and the number of parameters."""
    assert tree.root is not None
    names = {module.name for module in tree.root.walk()}
    missing = [name for unit in plan.units for name in unit.modules if name not in names]
    if missing or plan.model_elements != tree.parameters:
        absent = f", and has no {missing[0]}" if missing else ""
        raise PlanError(
            f"the plan is for another model: {plan.model} has {plan.model_elements or 0:,} "
            f"parameters, this {tree.name} has {tree.parameters:,}{absent}; plan again with this "
            "model, or without one"
        )

"""From a Resolution to a Plan."""

from dsconfig.facts import Facts, ModelTree
from dsconfig.mesh import Mesh
from dsconfig.planner.coverage import coverage
from dsconfig.planner.model import Plan, UnitSchedule
from dsconfig.planner.schedule import schedule
from dsconfig.planner.traffic import traffic
from dsconfig.report import Diagnostic
from dsconfig.resolver.resolution import Resolution
from dsconfig.runtimes.effective import Batch, Effective, Zero
from dsconfig.units import cap_of, units


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
    effective, batch = _settled(resolution)
    mesh = mesh_of(effective.zero, facts)
    planned = unit_schedule(effective.zero, facts.model)
    trainable = facts.model.trainable if facts.model else 0
    return Plan(
        runtime=resolution.runtime,
        mesh=mesh,
        batch=batch,
        effective=effective,
        units=planned,
        model=facts.model.name if facts.model else None,
        model_elements=facts.model.parameters if facts.model else None,
        memory=_expected_memory(effective, facts, resolution),
        traffic=traffic(planned, trainable, mesh, effective),
        coverage=coverage(effective),
    )


def _settled(resolution: Resolution) -> tuple[Effective, Batch]:
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
    return resolution.effective, resolution.effective.batch


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


def unit_schedule(zero: Zero, tree: ModelTree | None) -> tuple[UnitSchedule, ...]:
    """Units with their schedule; none at stage 0 or without a known model structure."""
    if zero.stage == 0 or tree is None or tree.root is None:
        return ()
    sizes = {name: tensor.elements for name, tensor in tree.root.named_parameters()}
    chosen = units(tree, cap_of(zero, tree))
    position = {module.name: place for place, module in enumerate(tree.root.walk())}
    order = sorted(
        range(len(chosen)), key=lambda index: min(position[name] for name in chosen[index].modules)
    )
    return schedule(chosen, sizes, zero, order)


def _expected_memory(
    effective: Effective, facts: Facts, resolution: Resolution
) -> dict[str, object]:
    """Device bytes per rank by phase, from the estimator, in the program that was asked about."""
    from dsconfig.cost.pricing import estimate
    from dsconfig.runtimes.base import runtime_of

    if facts.model is None:
        return {}
    program = runtime_of(resolution.runtime, resolution.version)
    option = estimate(effective, facts, runtime=program).options[0]
    return {
        "peak_bytes": option.device.peak_bytes,
        "peak_phase": str(option.device.peak_phase),
        "phases": {str(phase): count for phase, count in option.device.phase_bytes.items()},
        "host_bytes": option.host.bytes,
        "host_peak_bytes": option.host.peak_bytes,
        "nvme_bytes": option.nvme.bytes,
    }

"""Terminal output of a plan: verdict, decisions, units, and how each key is handled."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from dsconfig.commands.estimate_tables import step_line
from dsconfig.commands.text_table import TextTable, emphasised, paragraph
from dsconfig.cost.estimate import TierMemory
from dsconfig.cost.fit import host_or_disk_shortfall
from dsconfig.facts import Facts
from dsconfig.mesh import Mesh
from dsconfig.planner.plan import Plan, Status
from dsconfig.project.verdict import Requirement, sentence
from dsconfig.report.sizes import counted, size
from dsconfig.runtimes.effective import Tier
from dsconfig.unit_schedule import PlannedUnit

WIDEST_NAME = 14
"""Columns of the names of decisions."""


def does_not_fit(plan: Plan, facts: Facts) -> bool:
    """Return whether device, host memory or NVMe is too small, as far as each is known."""
    available, needed = _device_memory(facts), _needed(plan)
    too_small = available is not None and needed is not None and needed > available
    return bool(_shortfall(plan, facts)) or too_small


def _shortfall(plan: Plan, facts: Facts) -> str:
    """Return why host memory or NVMe does not suffice; empty if it does."""
    names = ("host", "host_peak", "host_rounding")
    total, peak, rounding = (plan.memory.get(f"{name}_bytes", 0) for name in names)
    disk = TierMemory(bytes=plan.memory.get("nvme_bytes", 0))
    return host_or_disk_shortfall(
        TierMemory(bytes=total, peak_bytes=peak, rounding_bytes=rounding), disk, facts
    )


def _needed(plan: Plan) -> int | None:
    return plan.memory.get("needed_bytes", plan.memory.get("peak_bytes"))


def _device_memory(facts: Facts) -> int | None:
    return facts.device.memory_bytes if facts.device else None


def verdict(plan: Plan, facts: Facts) -> str:
    """Return whether the plan fits the device, or which facts are missing."""
    needed, available = _needed(plan), _device_memory(facts)
    if needed is None:
        return "Memory is not estimated; specify --model (or --params) and --seq-len."
    activations = plan.memory.get("sequence_length", 0) is not None
    device = None if facts.device is None or available is None else (facts.device.name, available)
    least = plan.memory.get("least_needed_bytes")
    precision = str(plan.effective.numerics.precision)
    phase = plan.memory["peak_phase"]
    shortfall = _shortfall(plan, facts)
    required = Requirement(needed, phase, activations, shortfall, least, precision)
    text = sentence(required, device)
    hint = " Run `dsconfig estimate` for fixes." if does_not_fit(plan, facts) else ""
    return text + hint


def summary(plan: Plan) -> str:
    """Return one line per decision."""
    return "\n".join(
        paragraph(value, first=f"{name:<{WIDEST_NAME}}  ", indent=" " * (WIDEST_NAME + 2))
        for name, value in _summary(plan)
    )


def _summary(plan: Plan) -> Iterator[tuple[str, str]]:
    settled, batch, mesh = plan.effective, plan.batch, plan.mesh
    yield "defaults", f"DeepSpeed {plan.release}"
    ranks = f"{mesh.world_size} on {counted(plan.nodes, 'node')}"
    shards = mesh.state_ranks if settled.zero.stage else 1
    replicas = mesh.gradient_ranks // shards
    yield "ranks", f"{ranks} (shard over {shards}, replicate over {replicas})"
    if drawn := _mesh_of(mesh):
        yield "mesh", drawn
    if plan.model:
        yield "model", f"{plan.model}, {plan.model_elements or 0:,} parameters"
    yield "ZeRO stage", str(settled.zero.stage)
    yield "precision", str(settled.numerics.precision)
    yield (
        "batch",
        f"{batch.global_batch} = {batch.micro_batch} micro x {batch.accumulation} accumulation"
        f" x {batch.data_parallel} ranks",
    )
    for name, named in (("optimizer", settled.optimizer), ("scheduler", settled.scheduler)):
        if named is not None:
            params = ", ".join(f"{key}={value}" for key, value in named.params.items())
            yield name, f"{named.type}({params})"
    for name, tier in (
        ("states", settled.zero.optimizer_tier),
        ("parameters", settled.zero.parameter_tier),
    ):
        if tier is not Tier.DEVICE:
            yield name, f"on {tier}"
    if "peak_bytes" in plan.memory:
        peak = size(plan.memory["peak_bytes"])
        yield "expected peak", f"{peak} allocated per rank, in {plan.memory['peak_phase']}"
    if plan.step:
        yield "step", step_line(plan.step).removeprefix("Step: ")
    for collective, sent in plan.traffic.items():
        yield collective.replace("_", "-"), f"{size(sent)} sent per rank and step"


# --- units -----------------------------------------------------------------------------------

Pattern = tuple[tuple[str, ...], int, str, int]
"""Module names without numbers, elements, when it is unsharded, units prefetched."""


def _mesh_of(mesh: Mesh) -> str:
    """Return ``4 shard x 2 sequence; ranks that share samples: 0-1, 2-3, 4-5, ...``; "" if all
    ranks have samples of their own."""
    shared = [axis for axis in ("pipeline", "sequence", "tensor") if getattr(mesh, axis) > 1]
    if not shared and mesh.expert == 1:
        return ""
    axes = mesh.axes if shared else mesh.expert_axes
    parts = [" x ".join(f"{size} {axis}" for axis, size in axes.items() if size > 1)]
    for label, names in (("ranks that share samples", shared), ("experts over", ["expert"])):
        groups = mesh.groups(*names) if names and prod(getattr(mesh, n) for n in names) > 1 else ()
        if groups:
            shown = [_ranks_of(group) for group in groups[:GROUPS_SHOWN]]
            parts.append(f"{label}: {', '.join(shown)}{', ...' * (len(groups) > GROUPS_SHOWN)}")
    return "; ".join(parts)


GROUPS_SHOWN = 3


def _ranks_of(group: tuple[int, ...]) -> str:
    """Return ``0-7``, or ``0 4 8`` if the ranks are not neighbors."""
    is_range = group[-1] - group[0] == len(group) - 1
    return f"{group[0]}-{group[-1]}" if is_range else " ".join(map(str, group))


def units_table(units: Sequence[PlannedUnit]) -> TextTable:
    """Return the units of a stage in order; those that differ only by block number share a row."""
    groups: dict[Pattern, list[PlannedUnit]] = {}
    for unit in units:
        names = tuple(_NUMBER.sub("*", name) for name in unit.modules)
        pattern = names, unit.elements, _unsharded(unit), len(unit.prefetch)
        groups.setdefault(pattern, []).append(unit)
    table = TextTable(">units", ">elements", "unsharded", "prefetch", "modules")
    for (_, elements, unsharded, ahead), alike in groups.items():
        prefetched = f"next {ahead}" if ahead else "-"
        columns = zip(*(unit.modules for unit in alike), strict=True)
        modules = ", ".join(map(_numbered, columns)) or "(root)"
        table.add_row(str(len(alike)), f"{elements:,}", unsharded, prefetched, modules)
    return table


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""Block number in the name of a module."""


def _unsharded(unit: PlannedUnit) -> str:
    """Return when all of its parameters are gathered."""
    reshard = unit.reshard_after_forward
    if not unit.gather:
        return "always"
    if isinstance(reshard, bool):
        return "around use" if reshard else "until backward"
    return f"in groups of {reshard}"


def _numbered(names: tuple[str, ...]) -> str:
    """Return the common name with the range of numbers: ``model.layers.{0-31}.mlp``."""
    if len(set(names)) == 1:
        return names[0] or "(root)"
    numbers = [tuple(map(int, _NUMBER.findall(name))) for name in names]
    (first, last) = (iter(min(numbers)), iter(max(numbers)))

    def span(_: "re.Match[str]") -> str:
        low, high = next(first), next(last)
        return str(low) if low == high else f"{{{low}-{high}}}"

    return _NUMBER.sub(span, names[0])


# --- keys ------------------------------------------------------------------------------------


def coverage_lines(plan: Plan) -> list[str]:
    """Return one line per key of the file and how it is handled, unsupported keys first."""
    order = (Status.REFUSED, Status.INERT, Status.HONOURED)
    lines: list[str] = []
    for row in sorted(plan.coverage, key=lambda row: order.index(row.status)):
        path = row.pointer.strip("/").replace("/", ".")
        text = paragraph(f"{row.status.label:<7}  {path}: {row.by}", indent=" " * 11)
        lines.append(emphasised(text, row.status is Status.REFUSED))
    return lines


def simulation_table(result: Mapping[str, Any]) -> TextTable:
    """Return peak memory by phase on device and host, and bytes sent by collective."""
    table = TextTable("dry run", ">per rank")
    for phase, count in result["phases"].items():
        table.add_row(f"peak in {phase}", size(count))
    for phase, count in result.get("host", {}).items():
        table.add_row(f"host memory in {phase}", size(count))
    for collective, count in result["traffic"].items():
        table.add_row(f"{collective} per step", size(count))
    return table

"""Tables of a plan, for people."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from rich.table import Table

from dsconfig.commands.verdict import gib
from dsconfig.cost.search import TO_SPARE
from dsconfig.facts import Facts
from dsconfig.planner.plan import Plan, Status, UnitSchedule
from dsconfig.runtimes.effective import Tier

STYLES = {Status.HONOURED: "green", Status.INERT: "yellow", Status.REFUSED: "bold red"}


def lacks(plan: Plan, facts: Facts) -> int:
    """Bytes that are missing on each card; 0 where it fits, or where either is unknown."""
    room = facts.device.memory_bytes if facts.device else None
    needed = plan.memory.get("visible_bytes", plan.memory.get("peak_bytes"))
    return 0 if room is None or needed is None else max(0, needed - room)


def verdict(plan: Plan, facts: Facts) -> str:
    """Whether the plan fits the card, in one sentence; what is missing where nobody can say."""
    needed = plan.memory.get("visible_bytes", plan.memory.get("peak_bytes"))
    if needed is None:
        return "Memory is not estimated: give --model (or --params) and --seq-len."
    phase = plan.memory["peak_phase"]
    if facts.device is None or facts.device.memory_bytes is None:
        return f"Needs {gib(needed)} on each GPU, in {phase}."
    room, over = facts.device.memory_bytes, lacks(plan, facts)
    if over:
        said = f"Does not fit: {gib(over)} over on each {facts.device.name}, in {phase}."
        return f"{said} `dsconfig estimate` says what would."
    left = f"{gib(room - needed)} ({1 - needed / room:.0%}) left on each {facts.device.name}"
    word = "Fits, but tightly" if room - needed < TO_SPARE * room else "Fits"
    return f"{word}: {left}, at most in {phase}."


def summary_table(plan: Plan) -> Table:
    """One line per decision."""
    table = Table(title="Plan", title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _summary(plan):
        table.add_row(name, value)
    return table


def _summary(plan: Plan) -> Iterator[tuple[str, str]]:
    settled, batch, mesh = plan.effective, plan.batch, plan.mesh
    yield "runtime", f"{plan.runtime}, with the defaults of DeepSpeed {plan.release}"
    ranks = f"{mesh.world_size} on {plan.nodes} {'node' if plan.nodes == 1 else 'nodes'}"
    yield "ranks", f"{ranks} (shard over {mesh.shard}, replicate over {mesh.replicate})"
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
            given = ", ".join(f"{key}={value}" for key, value in named.params.items())
            yield name, f"{named.type}({given})"
    for name, tier in (
        ("optimizer states", settled.zero.optimizer_tier),
        ("parameters", settled.zero.parameter_tier),
    ):
        if tier is not Tier.DEVICE:
            yield name, f"on {tier}"
    if "peak_bytes" in plan.memory:
        peak = gib(plan.memory["peak_bytes"])
        yield "expected peak", f"{peak} per rank, in {plan.memory['peak_phase']}"
    for collective, sent in plan.traffic.items():
        yield collective.replace("_", "-"), f"{gib(sent)} sent per rank and step"


def units_table(plan: Plan) -> Table:
    """Units in order; runs of equal ones are one row."""
    table = Table(title="Sharding units", title_justify="left")
    for heading in ("units", "modules", "elements", "gathered", "freed after forward", "prefetch"):
        table.add_column(heading, overflow="fold")

    def shape(unit: UnitSchedule) -> tuple[Any, ...]:
        return (unit.elements, unit.gather, unit.reshard_after_forward, len(unit.prefetch))

    for _, run in groupby(plan.units, key=shape):
        same = list(run)
        first, last = same[0], same[-1]
        names = ", ".join(name or "(root)" for name in first.modules)
        if len(same) > 1:
            names += f" ... {', '.join(last.modules)}"
        table.add_row(
            str(len(same)),
            names,
            f"{first.elements:,}",
            "around use" if first.gather else "whole at rest",
            _freed(first.reshard_after_forward),
            f"next {len(first.prefetch)}" if first.prefetch else "-",
        )
    return table


def _freed(reshard: bool | int) -> str:
    if isinstance(reshard, bool):
        return "yes" if reshard else "no"
    return f"to a group of {reshard}"


def coverage_table(plan: Plan) -> Table:
    """Every key of the file with its fate."""
    table = Table(title="Keys", title_justify="left")
    table.add_column("key", overflow="fold")
    table.add_column("status", no_wrap=True)
    table.add_column("by, or why", overflow="fold")
    for row in plan.coverage:
        path = row.pointer.strip("/").replace("/", ".")
        table.add_row(path, f"[{STYLES[row.status]}]{row.status}[/]", row.by)
    return table


def simulation_table(result: Mapping[str, Any]) -> Table:
    """Peak bytes by phase, on the device and in main memory, and bytes sent by collective."""
    table = Table(title="Dry run", title_justify="left")
    table.add_column("what", overflow="fold")
    table.add_column("per rank", justify="right", no_wrap=True)
    for phase, count in result["phases"].items():
        table.add_row(f"peak in {phase}", gib(count))
    for phase, count in result.get("host", {}).items():
        table.add_row(f"main memory in {phase}", gib(count))
    for collective, count in result["traffic"].items():
        table.add_row(f"{collective} per step", gib(count))
    return table

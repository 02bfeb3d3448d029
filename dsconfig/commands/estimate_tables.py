"""The estimate on a terminal: a table over choices, the inverse, or one config in depth."""

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from dsconfig.commands.text_table import TextTable, paragraph, terminal_width
from dsconfig.cost.buckets import HISTORY
from dsconfig.cost.estimate import Estimate, Option, TierMemory
from dsconfig.cost.rendering import bar, both, label, moved
from dsconfig.cost.search import host_misfit
from dsconfig.lazily import lazily

with lazily():
    from dsconfig.cost import remedies
    from dsconfig.cost.deepspeed import releases
    from dsconfig.schema import version as versions


if TYPE_CHECKING:
    from dsconfig.cost.limits import Limit
    from dsconfig.cost.search import Candidate
    from dsconfig.facts import Facts
    from dsconfig.runtimes.base import Runtime
    from dsconfig.runtimes.effective import Effective

BAR_WIDTH, NARROWEST_BAR = 40, 10
ROOM_OF_SIZE = 16
"""Columns for the gap before a bar and the size behind it."""


def print_table(estimate: Estimate, facts: "Facts") -> None:
    """All usual choices: device, host, NVMe, what fits, and the communication buckets."""
    typer.echo(f"{_heading(estimate)}\n")
    typer.echo(f"{_choices(estimate, facts)}\n")
    typer.echo(f"{_bars(estimate)}\n")
    typer.echo(f"{_buckets(estimate)}\n")
    typer.echo(f"{paragraph(HISTORY)}\n")
    for line in [*_building(estimate), *_remarks(estimate, facts)]:
        typer.echo(paragraph(line))


def _building(estimate: Estimate) -> list[str]:
    """What main memory has to hold before training begins, where that is more."""
    first = estimate.options[0].host
    if first.peak_bytes <= first.bytes:
        return []
    return [
        f"Below stage 3 every rank builds the whole model in main memory first: "
        f"{both(first.peak_bytes)} per node. At stage 3 zero.Init is taken to spare that."
    ]


def _heading(estimate: Estimate) -> str:
    inputs = estimate.inputs
    gpus, nodes = inputs["gpus"], inputs["nodes"]
    where = f"{gpus} x {inputs['device']}" if inputs["device"] else f"{gpus} GPUs"
    on = f" on {nodes} nodes" if nodes and nodes > 1 else ""
    return (
        f"{inputs['model']}: {_scientific(inputs['parameters'])} parameters on {where}{on}, "
        f"{inputs['precision']}, {inputs['optimizer']}, {_program(inputs)}"
    )


def _scientific(count: int) -> str:
    """``13e9``, ``124e6``, ``1e12``: three digits before a power of a thousand."""
    power = 3 * ((len(str(count)) - 1) // 3)
    return f"{count / 10**power:.3g}e{power}" if power else str(count)


def _program(inputs: Mapping[str, Any]) -> str:
    """The runtime, with the release of DeepSpeed that it ends in."""
    version = inputs["deepspeed_version"]
    return str(inputs["runtime"]) + (f" (DeepSpeed {version})" if version else "")


def _choices(estimate: Estimate, facts: "Facts") -> TextTable:
    nvme = any(option.nvme.bytes for option in estimate.options)
    columns = [">stage", "moved off the GPU", ">peak per GPU", ">host per node"]
    table = TextTable(*columns, *([">NVMe per node"] if nvme else []), "fits")
    for option in estimate.options:
        cells = [str(option.stage), moved(option), both(option.device.peak_bytes)]
        cells += [both(option.host.bytes), *([both(option.nvme.bytes)] if nvme else [])]
        table.add_row(*cells, _fits(option, facts))
    return table


def _bars(estimate: Estimate) -> TextTable:
    """One bar per choice, all to one scale."""
    table = TextTable("peak per GPU", "")
    largest = max(option.device.peak_bytes for option in estimate.options)
    names = max(len(label(option)) for option in estimate.options)
    width = max(NARROWEST_BAR, min(BAR_WIDTH, terminal_width() - names - ROOM_OF_SIZE))
    for option in estimate.options:
        peak = option.device.peak_bytes
        table.add_row(label(option), f"{bar(peak, largest, width)} {peak / 2**30:.1f} GiB")
    return table


def _fits(option: Option, facts: "Facts") -> str:
    """Whether it fits the card and the main memory known, or the smallest card it fits."""
    if not option.fits:
        return "?"
    fitting = [fit for fit in option.fits if fit.fits]
    if facts.device is not None and not fitting:
        return f"no, {-option.fits[0].headroom_bytes / 2**30:.1f} GiB short"
    if not fitting:
        return "no known card"
    short = host_misfit(option, facts)
    if short:
        return f"no, {short}"
    smallest = fitting[0]
    if facts.device is not None:
        return f"yes, {smallest.headroom_bytes / 2**30:.1f} GiB left"
    return f"from {math.ceil(smallest.memory_bytes / 2**30)} GiB ({smallest.device})"


def _buckets(estimate: Estimate) -> TextTable:
    """The two numbers for communication buckets, always both."""
    table = TextTable("communication buckets", ">4.5x rule", ">really allocated")
    seen: set[tuple[int, int, int]] = set()
    for option in estimate.options:
        row = (option.stage, option.bucket_rule_bytes, option.bucket_allocated_bytes)
        if option.stage and row not in seen:
            seen.add(row)
            table.add_row(label(option), both(row[1]), both(row[2]))
    return table


def _remarks(estimate: Estimate, facts: "Facts") -> list[str]:
    inputs = estimate.inputs
    said: list[str] = []
    if facts.device is None or facts.device.kind != "cpu":
        said.append("A card has to hold the peak, the allocator's rounding, the context and NCCL.")
    if inputs["deepspeed_version"] is not None:
        known = releases.how_known(versions.Version.parse(inputs["deepspeed_version"]))
        said += [known] if known else []
    if inputs["assumed"]:
        low_high = estimate.options[-1].device
        said.append(f"Assumed: {'; '.join(inputs['assumed'])}.")
        if low_high.low_bytes is not None and low_high.high_bytes is not None:
            spread = (low_high.high_bytes - low_high.low_bytes) / 2 / low_high.peak_bytes
            said.append(f"Known by its count only: give or take {spread:.0%}; --model is exact.")
    if inputs["sequence_length"] is None:
        said.append("Without --seq-len no activations are counted: only states and buffers.")
    elif inputs["micro_batch"]:
        said.append(
            f"Activations of micro batch {inputs['micro_batch']} x {inputs['sequence_length']} "
            "tokens are counted."
        )
        training = facts.training
        asked = training is not None and "gradient_checkpointing" in training.arguments
        if inputs["recompute"] != "none" and not asked and inputs["deepspeed_version"]:
            said.append(
                "Blocks count as recomputed, as activation_checkpointing says; under "
                f"{inputs['runtime']} the model or the script decides: --recompute none is without."
            )
    return said


def print_limits(limits: "tuple[Limit, ...]") -> None:
    """What is the most that fits, with the choice that reaches it."""
    table = TextTable("question", ">answer", "with", ">peak per GPU", ">host per node")
    for limit in limits:
        if limit.value is None or limit.option is None:
            table.add_row(limit.question, "none fits", "", "", "")
            continue
        value = _scientific(limit.value) if limit.value >= 10**7 else f"{limit.value:,}"
        option = limit.option
        sizes = both(option.device.peak_bytes), both(option.host.bytes)
        table.add_row(limit.question, value, limit.how, *sizes)
    typer.echo(str(table))


def print_depth(
    estimate: Estimate, facts: "Facts", effective: "Effective", runtime: "Runtime"
) -> None:
    """One config: components by key and phase, headroom, and what would make it fit."""
    option = estimate.options[0]
    typer.echo(f"{_heading(estimate)}, {label(option)}")
    typer.echo(f"{_components(option)}\n")
    typer.echo(f"{_levels(option)}\n")
    for tier, held in (("host", option.host), ("NVMe", option.nvme)):
        if held.peak_bytes:
            short = host_misfit(option, facts) if tier == "host" else ""
            typer.echo(f"{_tier(tier, held, short)}\n")
    typer.echo(f"{_buckets(estimate)}\n")
    typer.echo(f"{paragraph(HISTORY)}\n")
    if not all(fit.fits for fit in option.fits) or host_misfit(option, facts):
        typer.echo(f"{_changes(facts, effective, runtime)}\n")
    for line in _remarks(estimate, facts):
        typer.echo(paragraph(line))


def _components(option: Option) -> TextTable:
    """One row per component and key, one column per phase."""
    phases = list(option.device.phase_bytes)
    table = TextTable("component", *(f">{phase}" for phase in phases), "caused by", "formula")
    rows: dict[tuple[str, str, str], dict[Any, int]] = {}
    for part in option.device.components:
        row = rows.setdefault((part.name, part.pointer, part.formula), {})
        row.update(dict.fromkeys(part.phases, part.bytes))
    for (name, pointer, formula), held in sorted(
        rows.items(), key=lambda row: -max(row[1].values())
    ):
        cells = [f"{held[phase] / 2**30:.2f}" if phase in held else "" for phase in phases]
        table.add_row(name, *cells, pointer, formula)
    totals = [f"{option.device.phase_bytes[phase] / 2**30:.2f}" for phase in phases]
    table.add_row("together, GiB", *totals, "", "", bold=True)
    return table


def _levels(option: Option) -> TextTable:
    device = option.device
    table = TextTable("", ">per GPU", "")
    table.add_row("peak allocated", both(device.peak_bytes), f"in {device.peak_phase}")
    if device.low_bytes is not None and device.high_bytes is not None:
        table.add_row("  between", both(device.low_bytes), "")
        table.add_row("  and", both(device.high_bytes), "")
    if device.reserved_bytes == device.peak_bytes:  # a CPU has neither allocator pool nor context
        if device.visible_bytes > device.peak_bytes:
            table.add_row(
                "with what is moved to the host", both(device.visible_bytes), "one memory"
            )
    else:
        table.add_row("reserved by the allocator", both(device.reserved_bytes), "")
        table.add_row(
            "as nvidia-smi shows it", both(device.visible_bytes), "context and NCCL added"
        )
    for fit in option.fits:
        verdict = "left" if fit.fits else "too much: out of memory"
        table.add_row(f"{fit.device} has", both(fit.memory_bytes), "")
        table.add_row("", both(abs(fit.headroom_bytes)), verdict, bold=not fit.fits)
    return table


def _tier(name: str, held: TierMemory, short: str) -> TextTable:
    table = TextTable(f"{name} memory", ">per node", "caused by", "formula")
    for part in held.components:
        table.add_row(part.name, both(part.bytes), part.pointer, part.formula)
    table.add_row("together, in training", both(held.bytes), "", "")
    if held.peak_bytes > held.bytes:
        table.add_row("at most, while it is built", both(held.peak_bytes), "", "", bold=True)
    if held.pinned_bytes:
        table.add_row("page-locked, as allocated", both(held.pinned_bytes), "", "powers of two")
    if short:
        table.add_row("too much: out of memory", "", "", short, bold=True)
    return table


def _changes(facts: "Facts", effective: "Effective", runtime: "Runtime") -> TextTable:
    changes = remedies.cheapest_changes(effective, facts, runtime=runtime)
    fits = bool(changes) and changes[0].fits
    title = "What would make it fit" if fits else "No single change makes it fit; nearest"
    table = TextTable(title, ">peak per GPU", ">expected time", "edit")
    for change in changes:
        edits = ", ".join(
            f"{pointer} = {json.dumps(value)}" for pointer, value in change.edits.items()
        )
        device = change.option.device
        table.add_row(change.what, both(device.peak_bytes), f"x {change.slowdown:.2f}", edits)
    return table


def candidates_table(candidates: "tuple[Candidate, ...]") -> TextTable:
    """The search: the winner in bold, each other candidate with its reason."""
    table = TextTable("config", ">s/sample", ">GPU, GiB", ">host, GiB", "verdict")
    for each in candidates:
        table.add_row(
            each.label,
            f"{(each.compared or each.time).seconds_per_sample:.3f}",
            f"{each.option.device.visible_bytes / 2**30:.1f}",
            f"{each.option.host.bytes / 2**30:.0f}" if each.option.host.bytes else "",
            each.reason or "fastest",
            bold=not each.reason,
        )
    return table

"""The estimate on a terminal: a table over choices, the inverse, or one config in depth."""

import math
from typing import TYPE_CHECKING, Any

from dsconfig.commands.console import console
from dsconfig.memory.buckets import HISTORY
from dsconfig.memory.estimate import Estimate, Option
from dsconfig.memory.render.words import bar, both, label, moved

if TYPE_CHECKING:
    from rich.table import Table

    from dsconfig.facts import Facts
    from dsconfig.memory.fit import Limit
    from dsconfig.memory.tuning import Candidate
    from dsconfig.runtimes.effective import Effective

BAR_WIDTH = 40


def print_table(estimate: Estimate, facts: "Facts") -> None:
    """All usual choices: device, host, NVMe, what fits, and the communication buckets."""
    out = console()
    out.print(_heading(estimate))
    out.print(_choices(estimate))
    out.print(_bars(estimate))
    out.print(_buckets(estimate))
    out.print(f"{HISTORY}\n", style="dim")
    for line in _remarks(estimate, facts):
        out.print(line, style="dim")


def _heading(estimate: Estimate) -> str:
    inputs = estimate.inputs
    gpus, nodes = inputs["gpus"], inputs["nodes"]
    where = f"{gpus} x {inputs['device']}" if inputs["device"] else f"{gpus} GPUs"
    on = f" on {nodes} nodes" if nodes and nodes > 1 else ""
    return (
        f"{inputs['model']}: {inputs['parameters'] / 1e9:.3g}e9 parameters on {where}{on}, "
        f"{inputs['precision']}, {inputs['optimizer']}, {inputs['runtime']}"
    )


def _table(*columns: str) -> "Table":
    """A borderless table; columns that begin with ``>`` are numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=right)
    return table


def _choices(estimate: Estimate) -> "Table":
    table = _table(">stage", "moved off the GPU", ">peak per GPU", ">host per node", "fits")
    nvme = any(option.nvme.bytes for option in estimate.options)
    if nvme:
        table.add_column("NVMe per node", justify="right", no_wrap=True)
    for option in estimate.options:
        cells = [str(option.stage), moved(option), both(option.device.peak_bytes)]
        cells += [both(option.host.bytes), _fits(option, known=bool(estimate.inputs["device"]))]
        table.add_row(*cells, *([both(option.nvme.bytes)] if nvme else []))
    return table


def _bars(estimate: Estimate) -> "Table":
    """One bar per choice, all to one scale."""
    table = _table("\npeak per GPU", "")
    largest = max(option.device.peak_bytes for option in estimate.options)
    for option in estimate.options:
        peak = option.device.peak_bytes
        table.add_row(label(option), f"{bar(peak, largest, BAR_WIDTH)} {peak / 2**30:.1f} GiB")
    return table


def _fits(option: Option, *, known: bool) -> str:
    """Whether it fits the card, or the smallest cards it fits."""
    if not option.fits:
        return "?"
    if known:
        fit = option.fits[0]
        spare = fit.headroom_bytes / 2**30
        return f"yes, {spare:.1f} GiB left" if fit.fits else f"no, {-spare:.1f} GiB short"
    fitting = [fit for fit in option.fits if fit.fits]
    if not fitting:
        return "no known card"
    return f"from {math.ceil(fitting[0].memory_bytes / 2**30)} GiB"


def _buckets(estimate: Estimate) -> "Table":
    """The two numbers for communication buckets, always both."""
    table = _table("\ncommunication buckets", ">\n4.5x rule", ">\nreally allocated")
    seen: set[tuple[int, int, int]] = set()
    for option in estimate.options:
        row = (option.stage, option.bucket_rule_bytes, option.bucket_allocated_bytes)
        if option.stage and row not in seen:
            seen.add(row)
            table.add_row(label(option), both(row[1]), both(row[2]))
    return table


def _remarks(estimate: Estimate, facts: "Facts") -> list[str]:
    inputs = estimate.inputs
    said = ["A card has to hold the peak, the allocator's rounding, the context and NCCL."]
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
    return said


def print_limits(limits: "tuple[Limit, ...]") -> None:
    """What is the most that fits, with the choice that reaches it."""
    table = _table("", ">at most", "with", ">peak per GPU", ">host per node")
    for limit in limits:
        if limit.value is None or limit.option is None:
            table.add_row(limit.question, "none fits", "", "", "")
            continue
        value = f"{limit.value / 1e9:.3g}e9" if limit.value >= 10**8 else f"{limit.value:,}"
        option = limit.option
        sizes = both(option.device.peak_bytes), both(option.host.bytes)
        table.add_row(limit.question, value, limit.how, *sizes)
    console().print(table)


def print_depth(estimate: Estimate, facts: "Facts", effective: "Effective", runtime: str) -> None:
    """One config: components by key and phase, headroom, and what would make it fit."""
    out = console()
    option = estimate.options[0]
    out.print(f"{_heading(estimate)}, {label(option)}")
    out.print(_components(option))
    out.print(_levels(option))
    for tier, held in (("host", option.host), ("NVMe", option.nvme)):
        if held.bytes:
            out.print(_tier(tier, held))
    out.print(_buckets(estimate))
    out.print(f"{HISTORY}\n", style="dim")
    if option.fits and not all(fit.fits for fit in option.fits):
        out.print(_changes(facts, effective, runtime))
    for line in _remarks(estimate, facts):
        out.print(line, style="dim")


def _components(option: Option) -> "Table":
    """One row per component and key, one column per phase."""
    phases = list(option.device.phase_bytes)
    table = _table("component", *(f">{phase}" for phase in phases), "caused by", "formula")
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
    table.add_row("[bold]together, GiB[/]", *(f"[bold]{total}[/]" for total in totals), "", "")
    return table


def _levels(option: Option) -> "Table":
    device = option.device
    table = _table("", ">per GPU", "")
    table.add_row("\npeak allocated", f"\n{both(device.peak_bytes)}", f"\nin {device.peak_phase}")
    if device.low_bytes is not None and device.high_bytes is not None:
        table.add_row("  between", both(device.low_bytes), "")
        table.add_row("  and", both(device.high_bytes), "")
    table.add_row("reserved by the allocator", both(device.reserved_bytes), "")
    table.add_row("as nvidia-smi shows it", both(device.visible_bytes), "context and NCCL added")
    for fit in option.fits:
        verdict = "left" if fit.fits else "[bold]too much: out of memory[/]"
        table.add_row(f"{fit.device} has", both(fit.memory_bytes), "")
        table.add_row("", both(abs(fit.headroom_bytes)), verdict)
    return table


def _tier(name: str, held: Any) -> "Table":
    table = _table(f"\n{name} memory", ">\nper node", "\ncaused by", "\nformula")
    for part in held.components:
        table.add_row(part.name, both(part.bytes), part.pointer, part.formula)
    table.add_row("together", both(held.bytes), "", "")
    if held.pinned_bytes:
        table.add_row("page-locked, as allocated", both(held.pinned_bytes), "", "powers of two")
    return table


def _changes(facts: "Facts", effective: "Effective", runtime: str) -> "Table":
    from dsconfig.memory.changes import cheapest_changes

    changes = cheapest_changes(effective, facts, runtime=runtime)
    fits = bool(changes) and changes[0].fits
    title = "What would make it fit" if fits else "No single change makes it fit; nearest"
    table = _table(title, ">peak per GPU", ">expected time", "edit")
    for change in changes:
        edits = ", ".join(f"{pointer} = {value}" for pointer, value in change.edits.items())
        device = change.option.device
        table.add_row(change.what, both(device.peak_bytes), f"x {change.slowdown:.2f}", edits)
    return table


def candidates_table(candidates: "tuple[Candidate, ...]") -> "Table":
    """The search: the winner in bold, each other candidate with its reason."""
    table = _table("config", ">s/sample", ">GPU, GiB", ">host, GiB", "verdict")
    for each in candidates:
        table.add_row(
            each.label,
            f"{each.time.seconds_per_sample:.3f}",
            f"{each.option.device.visible_bytes / 2**30:.1f}",
            f"{each.option.host.bytes / 2**30:.0f}" if each.option.host.bytes else "",
            each.reason or "fastest",
            style=None if each.reason else "bold",
        )
    return table

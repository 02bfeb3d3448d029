"""The estimate on a terminal: a table over choices, the inverse, or one config in depth.

The verdict stands first. Sizes are GiB, as nvidia-smi and torch print them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer

from dsconfig.commands import verdict as verdicts
from dsconfig.commands.text_table import TextTable, emphasised, paragraph, terminal_width
from dsconfig.cost.choices import offload_label
from dsconfig.cost.estimate import (
    MARGIN,
    MOVED,
    OUTSIDE,
    Estimate,
    Option,
    TierMemory,
)
from dsconfig.cost.rendering import bar, label
from dsconfig.cost.search import host_or_disk_shortfall
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report.sizes import GIB, counted, gib, in_gib, size
from dsconfig.runtimes.base import RECOMPUTATION
from dsconfig.source.pointer import dotted

with lazy_imports():
    from dsconfig.cost.deepspeed import releases
    from dsconfig.schema import version as versions


if TYPE_CHECKING:
    from dsconfig.commands.estimate import Answer
    from dsconfig.commands.inference import Program
    from dsconfig.cost.limits import Limit
    from dsconfig.cost.search import Candidate
    from dsconfig.cost.step_time import StepTime
    from dsconfig.facts import Facts
    from dsconfig.facts.machine import HostFacts

BAR_WIDTH, NARROWEST_BAR = 40, 10
ROOM_OF_SIZE = 16
"""Columns for the gap before a bar and the size behind it."""


def print_table(estimate: Estimate, facts: "Facts", program: "Program") -> None:
    """All usual choices: device, host, NVMe, what fits, and the communication buckets."""
    typer.echo(f"{paragraph(_heading(estimate, program))}\n")
    typer.echo(f"{paragraph(overall(estimate, facts))}\n")
    typer.echo(f"what each has to have, in GiB\n{_choices(estimate, facts)}\n")
    typer.echo(f"{_bars(estimate)}\n")
    typer.echo(f"{_buckets(estimate)}\n")
    first = estimate.options[0].host
    if first.is_building_worst:
        building = (
            f"Below stage 3 every rank builds the whole model in main memory first: "
            f"{size(first.peak_bytes)} per node. At stage 3 zero.Init is taken to spare that."
        )
        typer.echo(paragraph(building))
    for line in _remarks(estimate, facts):
        typer.echo(paragraph(line))


def overall(estimate: Estimate, facts: "Facts", is_config: bool = False) -> str:
    """Whether a config fits, or which of the choices do, in one sentence."""
    first, precision = estimate.options[0], estimate.inputs["precision"]
    if is_config:
        return verdicts.verdict(first, facts, precision)
    held = [
        each for each in estimate.options if not host_or_disk_shortfall(each.host, each.nvme, facts)
    ]
    if facts.device is None or not first.fits:
        leanest = replace(_leanest(held or estimate.options), fits=())
        return f"The leanest, {label(leanest)}: {verdicts.verdict(leanest, facts, precision)}"
    fitting = [each for each in held if each.fits[0].fits]
    if not fitting:
        leanest = _leanest(estimate.options)
        surely = "" if leanest.fits[0].may_fit else "Nothing below fits. "
        return f"{surely}The leanest, {label(leanest)}: {verdicts.verdict(leanest, facts)}"
    return (
        f"{len(fitting)} of {len(estimate.options)} fit each {facts.device.name}; the least "
        f"sharded, {label(fitting[0])}: {size(fitting[0].fits[0].headroom_bytes)} left. "
        "`dsconfig tune` says which is fastest."
    )


def _leanest(options: Sequence[Option]) -> Option:
    return min(options, key=lambda option: option.device.needed_bytes)


def _heading(estimate: Estimate, program: "Program") -> str:
    inputs = estimate.inputs
    gpus, nodes = inputs["gpus"], inputs["nodes"]
    where = f"{gpus} x {inputs['device']}" if inputs["device"] else counted(gpus, "GPU")
    on = f" on {nodes} nodes" if nodes and nodes > 1 else ""
    named = _named(inputs["model"], inputs["parameters"])
    return (
        f"{named} on {where}{on}, {inputs['precision']}, {inputs['optimizer']}; {program.sentence}"
    )


def _named(model: str, parameters: int) -> str:
    """``llama-3-8b: 8.03e9 parameters``; a model known by its count has no other name."""
    count = f"{_scientific(parameters)} parameters"
    return count if model == count else f"{model}: {count}"


def _scientific(count: int) -> str:
    """``13e9``, ``124e6``, ``1e12``: three digits before a power of a thousand."""
    power = 3 * ((len(str(count)) - 1) // 3)
    return f"{count / 10**power:.3g}e{power}" if power else str(count)


def _choices(estimate: Estimate, facts: "Facts") -> TextTable:
    nvme = any(option.nvme.bytes for option in estimate.options)
    columns = [">stage", "moved off the GPU", ">GPU", ">host"]
    table = TextTable(*columns, *([">NVMe"] if nvme else []), "fits")
    for option in estimate.options:
        counts = [option.device.needed_bytes, option.host.bytes]
        counts += [option.nvme.bytes] if nvme else []
        cells = [in_gib(count, 1) if count else "-" for count in counts]
        tiers = offload_label(option.offload_optimizer, option.offload_param)
        table.add_row(str(option.stage), tiers, *cells, _fits(option, facts))
    return table


def _size(count: float) -> str:
    """In GiB, as a cell has it: the unit stands in the heading; ``-`` for nothing."""
    return in_gib(count) if count else "-"


def _bars(estimate: Estimate) -> TextTable:
    """One bar per choice, all to one scale."""
    table = TextTable("needed per GPU", "")
    largest = max(option.device.needed_bytes for option in estimate.options)
    names = max(len(label(option)) for option in estimate.options)
    width = max(NARROWEST_BAR, min(BAR_WIDTH, terminal_width() - names - ROOM_OF_SIZE))
    for option in estimate.options:
        needed = option.device.needed_bytes
        table.add_row(label(option), f"{bar(needed, largest, width)} {gib(needed)}")
    return table


def _fits(option: Option, facts: "Facts") -> str:
    """Whether it fits the card and the main memory known, or the smallest card it fits."""
    if not option.fits:
        return "?"
    fitting = [fit for fit in option.fits if fit.fits]
    if facts.device is not None and not fitting:
        told = "perhaps not" if option.fits[0].may_fit else "no"
        return f"{told}, {gib(-option.fits[0].headroom_bytes)} short"
    if not fitting:
        return "no known card"
    short = host_or_disk_shortfall(option.host, option.nvme, facts)
    if short:
        return f"no, {short}"
    smallest = fitting[0]
    if facts.device is not None:
        return f"yes, {gib(smallest.headroom_bytes)} left"
    return f"from {math.ceil(smallest.memory_bytes / GIB)} GiB ({smallest.device})"


def _buckets(estimate: Estimate) -> str:
    """The documented bound of the communication buckets, beside what is really allocated."""
    seen: dict[tuple[int, int], str] = {}
    for option in estimate.options:
        if option.stage:
            row = (option.bucket_rule_bytes, option.bucket_allocated_bytes)
            seen.setdefault(row, label(option))
    lines = ["communication buckets: the documented bound (4.5x rule), and what is allocated"]
    lines += [
        f"  {name}: 4.5x rule {rule / 1e9:.2f} GB, {gib(rule, 2)}; allocated {gib(held, 2)}"
        for (rule, held), name in seen.items()
    ]
    return "\n".join(lines) if seen else "communication buckets: none at stage 0"


def _remarks(estimate: Estimate, facts: "Facts") -> list[str]:
    inputs = estimate.inputs
    said: list[str] = []
    if facts.device is None or facts.device.kind != "cpu":
        said.append(_NEEDED)
    if inputs["deepspeed_version"] is not None:
        known = releases.how_known(versions.Version.parse(inputs["deepspeed_version"]))
        said += [known] if known else []
    if inputs["assumed"]:
        low_high = estimate.options[-1].device
        said.append(f"Assumed: {'; '.join(inputs['assumed'])}.")
        if low_high.low_bytes is not None and low_high.high_bytes is not None:
            spread = (low_high.high_bytes - low_high.low_bytes) / 2 / low_high.peak_bytes
            by_count = _named(inputs["model"], inputs["parameters"]) == inputs["model"]
            what = "its count only" if by_count else "what is assumed"
            exact = "; --model is exact" if by_count else ""
            said.append(f"Known by {what}: give or take {spread:.0%}{exact}.")
    if inputs["sequence_length"] is None:
        said.append("Without --seq-len no activations are counted: only states and buffers.")
    elif inputs["micro_batch"]:
        said.append(
            f"Activations of micro batch {inputs['micro_batch']} x {inputs['sequence_length']} "
            "tokens are counted."
        )
    return said


def print_limits(limits: "tuple[Limit, ...]", facts: "Facts", program: "Program") -> None:
    """What is the most that fits, with the choice that reaches it."""
    card = facts.device.name if facts.device else "the card"
    where = f"{facts.world_size} x {card}" if facts.world_size else card
    typer.echo(f"{paragraph(f'on {where}; {program.sentence}')}\n")
    any_host = facts.host is None or not facts.host.memory_bytes
    for limit in limits:
        answer = "none fits" if limit.value is None else _count(limit.value)
        host = limit.option.host.bytes if limit.option and any_host else 0
        given = f", given {size(host)} of main memory a node" if host else ""
        typer.echo(emphasised(f"{limit.question}: {answer}{given}"))
    typer.echo()
    table = TextTable("question", ">answer", ">GPU, GiB", ">host, GiB", "with")
    for limit in limits:
        if limit.value is None or limit.option is None:
            table.add_row(limit.question, "none fits", "", "", "")
            continue
        value = _count(limit.value)
        option = limit.option
        sizes = _size(option.device.needed_bytes), _size(option.host.bytes)
        table.add_row(limit.question, value, *sizes, limit.how)
    typer.echo(str(table))


def _count(value: int) -> str:
    return _scientific(value) if value >= 10**7 else f"{value:,}"


def print_depth(answer: "Answer") -> None:
    """One config: the verdict, what would turn it, what would make it fit, then components."""
    estimate, facts, option = answer.found, answer.facts, answer.option
    runtime, written = answer.program.runtime, answer.written
    typer.echo(f"{paragraph(f'{_heading(estimate, answer.program)}; {label(option)}')}\n")
    typer.echo(emphasised(paragraph(overall(estimate, facts, is_config=True))))
    for other in answer.others:
        typer.echo(paragraph(verdicts.assumption_line(other)))
    if not_fitting(option, facts):
        for line in verdicts.remedy_lines(answer.changes, runtime, written):
            typer.echo(line)
    typer.echo(f"\n{_components(option)}\n")
    typer.echo(f"{_levels(option)}\n")
    if option.step is not None and estimate.inputs["sequence_length"] is not None:
        typer.echo(f"{paragraph(step_line(asdict(option.step)))}\n")
    for tier, held in (("host", option.host), ("NVMe", option.nvme)):
        if held.peak_bytes:
            host = facts.host if held is option.host else None
            typer.echo(f"{_tier(tier, held, host)}\n")
    typer.echo(f"{_buckets(estimate)}\n")
    in_file = RECOMPUTATION.lstrip("/") in written and not runtime.recomputes_from_config
    if in_file and estimate.inputs["recompute"] == "none":
        step = runtime.set_elsewhere[RECOMPUTATION]
        alone = f"activation_checkpointing alone recomputes nothing: {step} does"
        typer.echo(paragraph(f"{alone} (--recompute full)."))
    for line in _remarks(estimate, facts):
        typer.echo(paragraph(line))


def step_line(step: Mapping[str, float | None]) -> str:
    """Seconds of a step with their range and parts, and what they come to on each GPU."""
    seconds, low, high = (step[f"{name}seconds"] or 0.0 for name in ("", "low_", "high_"))
    named = ("compute", "communication", "offload", "bubble")
    parts = [(name, step[f"{name}_seconds"] or 0.0) for name in named]
    listed = ", ".join(f"{name} {value:.3g}" for name, value in parts if value >= 0.005 * seconds)
    share = "" if step["mfu"] is None else f", {step['mfu']:.0%} MFU"
    return (
        f"Step: {seconds:.3g} s expected, {low:.3g} to {high:.3g} by what is published ({listed}); "
        f"{step['tokens_per_second_per_gpu'] or 0.0:,.0f} tokens/s per GPU{share}."
    )


def not_fitting(option: Option, facts: "Facts") -> bool:
    """Whether a card, or the main memory or disk that is known, is too small."""
    short = host_or_disk_shortfall(option.host, option.nvme, facts)
    return bool(short) or not all(fit.fits for fit in option.fits)


def _components(option: Option) -> TextTable:
    """One row per component and key, one column per phase; on a narrow screen the peak alone."""
    phases = list(option.device.phase_bytes)
    rows: dict[tuple[str, str, str], dict[Any, int]] = {}
    for part in option.device.components:
        row = rows.setdefault((part.name, part.pointer, part.formula), {})
        row.update(dict.fromkeys(part.phases, part.bytes))
    ordered = sorted(rows.items(), key=lambda row: -max(row[1].values()))
    if terminal_width() < WIDE:
        return _at_the_peak(option, ordered)
    formulas = terminal_width() >= WIDEST
    last = ["caused by", "formula"] if formulas else ["caused by"]
    table = TextTable("component, GiB", *(f">{phase}" for phase in phases), *last)
    for (name, pointer, formula), held in ordered:
        cells = [in_gib(held[phase]) if phase in held else "" for phase in phases]
        last = [_key(pointer), formula] if formulas else [_last_of(pointer)]
        table.add_row(name, *cells, *last)
    totals = [in_gib(option.device.phase_bytes[phase]) for phase in phases]
    table.add_row("together", *totals, *([""] * len(last)), bold=True)
    return table


WIDE, WIDEST = 110, 150
"""Columns from which all phases are shown, and from which the formulas are."""


def _at_the_peak(option: Option, ordered: "list[tuple[Any, dict[Any, int]]]") -> TextTable:
    """Component, bytes at the highest moment, and the last name of the key."""
    phase = option.device.peak_phase
    table = TextTable(f"component, in {phase}", ">GiB", "caused by")
    for (name, pointer, _), held in ordered:
        if phase in held:
            table.add_row(name, in_gib(held[phase]), _last_of(pointer))
    phases = (f"{each} {in_gib(count)}" for each, count in option.device.phase_bytes.items())
    total = in_gib(option.device.peak_bytes)
    table.add_row("together", total, ", ".join(phases), bold=True)
    return table


def _last_of(pointer: str) -> str:
    """The key without its block, where there is little room."""
    return _key(pointer).removeprefix("zero_optimization.")


def _key(pointer: str) -> str:
    return dotted(pointer) if pointer else ""


def _levels(option: Option) -> TextTable:
    """From what is allocated to what the card has; each difference is a line of its own."""
    device = option.device
    table = TextTable("", ">GiB per GPU", "")
    table.add_row("peak allocated", _size(device.peak_bytes), f"in {device.peak_phase}")
    if device.low_bytes is not None and device.high_bytes is not None:
        span = f"{_size(device.low_bytes)} to {_size(device.high_bytes)}"
        table.add_row("", "", f"{span}, by what is assumed")
    for name, count in device.beside_peak.items():
        table.add_row(name, _size(count), _BESIDE[name])
    if MOVED in device.beside_peak:
        table.add_row("together", _size(device.needed_bytes), "")
    elif device.beside_peak:
        least, most = device.least_needed_bytes, device.most_needed_bytes
        # Where one run was measured, the ends of what fragments make of it are one.
        between = f"{_size(least)} to {_size(most)} by fragments" if least < most else ""
        table.add_row("what a card has to have", _size(device.needed_bytes), between)
        table.add_row("as nvidia-smi shows it", _size(device.visible_bytes), "pools of all streams")
    for fit in option.fits:
        verdict = "left" if fit.fits else _TOO_MUCH[fit.may_fit]
        table.add_row(f"{fit.device} has", _size(fit.memory_bytes), "")
        table.add_row("", _size(abs(fit.headroom_bytes)), verdict, bold=not fit.fits)
    return table


_TOO_MUCH = {False: "too much: out of memory", True: "too much, unless fragments are few"}
"""By whether it may fit."""
_NEEDED = (
    "A card has to have the peak, the allocator's rounding, the context and NCCL. Pools that "
    "streams keep for themselves are given back when memory is short, at the cost of time."
)
_BESIDE = {
    MARGIN: "rounding and fragments",
    OUTSIDE: "CUDA context, NCCL",
    MOVED: "one memory",
}


def _tier(name: str, held: TierMemory, host: "HostFacts | None") -> TextTable:
    wide = terminal_width() >= WIDE
    columns = ["caused by", "formula"] if wide else ["formula"]
    table = TextTable(f"{name} memory", ">GiB per node", *columns)

    def add(what: str, count: int, formula: str = "", cause: str = "", bold: bool = False) -> None:
        table.add_row(what, _size(count), *([cause] if wide else []), formula, bold=bold)

    for part in held.components:
        add(part.name, part.bytes, part.formula, _key(part.pointer))
    add("together, in training", held.bytes)
    if held.peak_bytes > held.bytes:
        at_most = "at most, being built" if held.is_building_worst else "at most, with rounding"
        add(at_most, held.peak_bytes, bold=True)
    if held.pinned_bytes:
        add("page-locked", held.pinned_bytes, "rounded to powers of two")
    if host is not None and host.memory_bytes is not None and host.usable_bytes is not None:
        left = host.usable_bytes - held.peak_bytes
        add("the node has", host.memory_bytes)
        kept = host.memory_bytes - host.usable_bytes
        add("kept for the system", kept, "kernel, daemons, page cache")
        add("", abs(left), "left" if left >= 0 else "too much", bold=left < 0)
    return table


def found_first(best: "Candidate") -> str:
    """What the search says before all else."""
    if best.reason:
        return f"Nothing fits. What comes nearest, {best.label}: {best.reason}."
    return f"Fastest that fits: {best.label}"


def print_candidates(
    found: "tuple[Candidate, ...]", most: int | None, facts: "Facts", program: "Program"
) -> None:
    """The search: what won and what it reaches, then each other candidate with its reason, ``most``
    rows of them.
    """
    best = found[0]
    peak = facts.device.tflops_16bit if facts.device else None
    option, time = best.option, best.time
    typer.echo(f"{paragraph(_won(best, facts, program))}\n")
    typer.echo(emphasised(paragraph(found_first(best))))
    if not best.reason:
        rate = _rate_of(time, peak)
        share = f", {rate[1]} MFU" if rate[1] != "-" else ""
        typer.echo(paragraph(verdicts.verdict(option, facts)))
        typer.echo(
            paragraph(
                f"{rate[0]} tokens/s per GPU{share}, {time.seconds:.2f} s per step of "
                f"{time.samples} samples; by a model of FLOPs, links and PCIe: to rank, not to "
                "promise."
            )
        )
    heading = "each with the largest micro batch that fits; memory in GiB"
    if not facts.training or facts.training.global_batch_size is None:
        heading += "; --global-batch makes their steps equal"
    typer.echo(f"\n{paragraph(heading)}")
    table = TextTable(">tokens/s/GPU", ">MFU", ">GPU", ">host", "config")
    groups = _alike(found)
    for alike in groups[:most]:
        each = alike[0]
        stages = " or ".join(str(one.choice.stage) for one in alike)
        table.add_row(
            *_cells(each, peak),
            f"stage {stages}{each.choice.tiers}, {each.run}: {each.reason or 'fastest'}",
            bold=not each.reason,
        )
    typer.echo(str(table))
    if most is not None and len(groups) > most:
        typer.echo(f"{len(groups) - most} more with --all")


def _alike(found: "tuple[Candidate, ...]") -> "list[list[Candidate]]":
    """The candidates in order; stages between which no number differs are together."""
    groups: dict[tuple[str, ...], list[Candidate]] = {}
    for each in found:
        same = (*_cells(each, 1.0), each.choice.tiers, each.run, str(each.verdict.fits))
        groups.setdefault(same, []).append(each)
    return list(groups.values())


def _cells(each: "Candidate", peak_tflops: float | None) -> tuple[str, str, str, str]:
    option = each.option
    host = in_gib(option.host.bytes, 0) if option.host.bytes else ""
    return (*_rate_of(each.time, peak_tflops), in_gib(option.device.needed_bytes, 1), host)


def _won(best: "Candidate", facts: "Facts", program: "Program") -> str:
    model, device = facts.model, facts.device
    named = _named(model.name, model.parameters) if model else "a model"
    gpus = facts.world_size or 1
    where = f"{gpus} x {device.name}" if device else counted(gpus, "GPU")
    tokens = facts.training.sequence_length if facts.training else None
    precision = best.effective.numerics.precision
    return f"{named} on {where}, {tokens} tokens per sample, {precision}; {program.sentence}"


def _rate_of(time: "StepTime", peak_tflops: float | None) -> tuple[str, str]:
    share = time.mfu(peak_tflops * 1e12 if peak_tflops else None)
    return f"{time.tokens_per_second:,.0f}", "-" if share is None else f"{share:.0%}"

"""Terminal output of estimates: usual configurations, limits (--fit), or one config in detail.

The verdict comes first. Sizes are in GiB, as in nvidia-smi and torch.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dsconfig.commands import suggested_changes
from dsconfig.commands.bars import memory_bars
from dsconfig.commands.estimate_result import not_fitting
from dsconfig.commands.printing import print_text
from dsconfig.commands.text_table import (
    TextTable,
    colored_verdict,
    paragraph,
    terminal_width,
    uses_color,
)
from dsconfig.cost.choices import offload_label
from dsconfig.cost.estimate import (
    MARGIN,
    MOVED,
    OUTSIDE,
    Estimate,
    Option,
    TierMemory,
)
from dsconfig.cost.fit import TO_SPARE, host_or_disk_shortfall
from dsconfig.cost.rendering import label
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import verdict as verdicts
from dsconfig.report.sizes import GIB, counted, gib, in_gib, size
from dsconfig.runtimes.base import RECOMPUTATION
from dsconfig.source.pointer import dotted

with lazy_imports():
    from dsconfig.commands import host_memory
    from dsconfig.cost.deepspeed import releases
    from dsconfig.facts.base_weights import BaseWeights
    from dsconfig.schema import version as versions


if TYPE_CHECKING:
    from dsconfig.commands.estimate import Result
    from dsconfig.facts import Facts
    from dsconfig.facts.machine import HostFacts
    from dsconfig.project.inference import TargetProgram


def print_table(estimate: Estimate, facts: "Facts", program: "TargetProgram") -> None:
    """Print the usual configurations: GPU, host and NVMe memory, what fits, and the buckets."""
    print_text(f"{paragraph(_heading(estimate))}\n{paragraph(program.headline)}\n")
    print_text(colored_verdict(paragraph(verdicts.overall(estimate, facts))))
    print_host(max(estimate.options, key=lambda option: option.host.peak_bytes), facts, "up to ")
    print_text(f"\nMemory required per configuration (GiB)\n{_choices(estimate, facts)}\n")
    print_text(f"{memory_bars(estimate.options)}\n")
    print_text(f"{_buckets(estimate)}\n")
    first = estimate.options[0].host
    if first.is_building_worst:
        building = (
            f"Below stage 3, every rank first builds the full model in host memory: "
            f"{size(first.peak_bytes)} per node. Stage 3 is assumed to use zero.Init, which avoids "
            "this."
        )
        print_text(paragraph(building))
    for line in _remarks(estimate, facts):
        print_text(paragraph(line))


def _heading(estimate: Estimate) -> str:
    inputs = estimate.inputs
    gpus, nodes = inputs["gpus"], inputs["nodes"]
    devices = f"{gpus} x {inputs['device']}" if inputs["device"] else counted(gpus, "GPU")
    on = f" on {nodes} nodes" if nodes and nodes > 1 else ""
    model = model_label(inputs["model"], inputs["parameters"])
    weights = inputs["base_weights"]
    base = f", {BaseWeights(weights).hyphenated} base weights" if weights else ""
    kind = inputs["master_weights"]
    copy = f" with {'no' if kind == 'none' else kind} master weights" if kind else ""
    precision = f"{inputs['precision']}{copy}{base}{_trainable(inputs)}"
    return f"{model} on {devices}{on}, {precision}, {inputs['optimizer']}"


def _trainable(inputs: Mapping[str, Any]) -> str:
    """Return ``, LoRA rank 16, 40e6 trainable``; empty if all parameters are trained."""
    if inputs["trainable"] == inputs["parameters"]:
        return ""
    adapters = f", LoRA rank {inputs['lora_rank']}" if inputs["lora_rank"] else ""
    return f"{adapters}, {scientific(inputs['trainable'])} trainable"


def model_label(model: str, parameters: int) -> str:
    """Return ``llama-3-8b: 8.03e9 parameters``, or only the count for an unnamed model."""
    count = f"{scientific(parameters)} parameters"
    return count if model == count else f"{model}: {count}"


def scientific(count: int) -> str:
    """Return a count as ``13e9``, ``124e6`` or ``1e12``."""
    power = 3 * ((len(str(count)) - 1) // 3)
    return f"{count / 10**power:.3g}e{power}" if power else str(count)


def _choices(estimate: Estimate, facts: "Facts") -> TextTable:
    nvme = any(option.nvme.bytes for option in estimate.options)
    columns = [">stage", "offload", ">GPU", ">host"]
    fits = "fits" if estimate.inputs["sequence_length"] else "fits without activations"
    table = TextTable(*columns, *([">NVMe"] if nvme else []), fits)
    for option in estimate.options:
        counts = [option.device.needed_bytes, option.host.peak_bytes]
        counts += [option.nvme.bytes] if nvme else []
        cells = [in_gib(count, 1) if count else "-" for count in counts]
        tiers = offload_label(option.offload_optimizer, option.offload_param)
        table.add_row(str(option.stage), tiers, *cells, _fits(option, facts))
    return table


def size_cell(count: float) -> str:
    """Return a size in GiB without the unit; ``-`` for zero."""
    return in_gib(count) if count else "-"


def _fits(option: Option, facts: "Facts") -> str:
    """Return whether it fits the device and host memory, or the smallest GPU that fits."""
    if not option.fits:
        return "?"
    fitting = [fit for fit in option.fits if fit.fits]
    if facts.device is not None and not fitting:
        answer = "maybe not" if option.fits[0].may_fit else "no"
        return f"{answer}, {gib(-option.fits[0].headroom_bytes)} over"
    if not fitting:
        return "no known GPU"
    misfit = host_or_disk_shortfall(option.host, option.nvme, facts)
    if misfit:
        return f"no, {misfit}"
    smallest = fitting[0]
    if facts.device is not None:
        is_tight = smallest.headroom_bytes < TO_SPARE * smallest.memory_bytes
        return f"{'tightly' if is_tight else 'yes'}, {gib(smallest.headroom_bytes)} left"
    return f"from {math.ceil(smallest.memory_bytes / GIB)} GiB ({smallest.device})"


def _buckets(estimate: Estimate) -> str:
    """Return the allocated communication buckets, and DeepSpeed's 4.5x rule where it is a bound."""
    sharded = [option for option in estimate.options if option.stage]
    if not sharded:
        return "Communication buckets: none at stage 0"
    allocated = _by_stage({o.stage: gib(o.bucket_allocated_bytes, 2) for o in reversed(sharded)})
    text = f"Communication buckets allocated: {allocated}"
    if all(option.bucket_rule_bytes >= option.bucket_allocated_bytes for option in sharded):
        rule = _by_stage({o.stage: gib(o.bucket_rule_bytes, 2) for o in reversed(sharded)})
        text += f"; 4.5x rule: at most {rule}"
    return paragraph(text)


def _by_stage(values: Mapping[int, str]) -> str:
    """Return one value, or each value with its stages if they differ."""
    stages: dict[str, list[str]] = {}
    for stage, value in sorted(values.items()):
        stages.setdefault(value, []).append(str(stage))
    if len(stages) == 1:
        return next(iter(stages))
    return ", ".join(
        f"{value} at stage{'s'[: len(numbers) - 1]} {' and '.join(numbers)}"
        for value, numbers in stages.items()
    )


def _remarks(estimate: Estimate, facts: "Facts") -> list[str]:
    inputs = estimate.inputs
    remarks: list[str] = []
    if facts.device is None or facts.device.kind != "cpu":
        remarks.append(_REQUIRED)
    if inputs["deepspeed_version"] is not None:
        known = releases.how_known(versions.Version.parse(inputs["deepspeed_version"]))
        remarks += [known] if known else []
    if inputs["assumed"]:
        device = estimate.options[-1].device
        remarks.append(f"Assumptions: {'; '.join(inputs['assumed'])}.")
        if device.low_bytes is not None and device.high_bytes is not None:
            spread = (device.high_bytes - device.low_bytes) / 2 / device.peak_bytes
            by_count = model_label(inputs["model"], inputs["parameters"]) == inputs["model"]
            if by_count:
                reason = "Only the parameter count is known"
                hint = "; specify --model for an exact estimate"
            else:
                reason, hint = "Uncertainty of these assumptions:", ""
            remarks.append(f"{reason} (±{spread:.0%}){hint}.")
    if inputs["base_weights"]:
        at_stage_3 = any(option.stage == 3 for option in estimate.options)
        by_dsengine = inputs["deepspeed_version"] is None
        kind = BaseWeights(inputs["base_weights"])
        remarks.append(kind.remark(at_stage_3=at_stage_3, by_dsengine=by_dsengine))
    if inputs["sequence_length"] is None:
        remarks.append(
            "Without --seq-len, activations are not included: only model states and buffers are."
        )
    elif inputs["micro_batch"]:
        batch = f"micro batch {inputs['micro_batch']} x {inputs['sequence_length']:,} tokens"
        # Suggested changes of a config include recomputation.
        compared = len(estimate.options) > 1 and inputs["recompute"] == "none"
        unused = "; --recompute full (gradient checkpointing) reduces them" if compared else ""
        remarks.append(f"Includes activations of {batch}{unused}.")
    return remarks


def print_depth(result: "Result") -> None:
    """Print one config: verdict, decisive assumptions, fixes, then components."""
    estimate, facts, option = result.estimate, result.facts, result.option
    runtime, document = result.program.runtime, result.document
    written: Mapping[str, Any] = document.value if document else {}
    print_text(paragraph(f"{_heading(estimate)}, {label(option)}"))
    print_text(f"{paragraph(result.program.headline)}\n")
    print_text(colored_verdict(paragraph(verdicts.overall(estimate, facts, is_config=True))))
    print_host(option, facts)
    for other in result.others:
        print_text(paragraph(verdicts.assumption_line(other)))
    if not_fitting(option, facts) and document is not None:
        known = estimate.inputs["sequence_length"] is not None
        for line in suggested_changes.change_lines(
            result.changes, runtime, document, activations=known
        ):
            print_text(line)
    if result.host_fixes:
        print_text("To fit the host memory:")
        for fix in result.host_fixes:
            print_text(paragraph(fix, first="  ", indent="    "))
    if uses_color():
        print_text(f"\n{memory_bars(estimate.options)}")
    print_text(f"\n{_components(option)}\n")
    print_text(f"{_levels(option)}\n")
    if option.step is not None and estimate.inputs["sequence_length"] is not None:
        print_text(f"{paragraph(step_line(asdict(option.step)))}\n")
    for name, tier in (("host", option.host), ("NVMe", option.nvme)):
        if tier.peak_bytes:
            host = facts.host if tier is option.host else None
            print_text(f"{_tier(name, tier, host)}\n")
    print_text(f"{_buckets(estimate)}\n")
    in_file = RECOMPUTATION.lstrip("/") in written and not runtime.recomputes_from_config
    if in_file and estimate.inputs["recompute"] == "none":
        step = runtime.set_elsewhere[RECOMPUTATION]
        inert = f"activation_checkpointing alone has no effect: enable it with {step}"
        print_text(paragraph(f"{inert} (--recompute full)."))
    for line in _remarks(estimate, facts):
        print_text(paragraph(line))


def step_line(step: Mapping[str, float | None]) -> str:
    """Return the step time with its range and parts, and the throughput per GPU."""
    seconds, low, high = (step[f"{name}seconds"] or 0.0 for name in ("", "low_", "high_"))
    named = ("compute", "communication", "offload", "bubble")
    parts = [(name, step[f"{name}_seconds"] or 0.0) for name in named]
    listed = ", ".join(f"{name} {value:.3g}" for name, value in parts if value >= 0.005 * seconds)
    share = "" if step["mfu"] is None else f", {step['mfu']:.0%} MFU"
    return (
        f"Step: {seconds:.3g} s expected, {low:.3g} to {high:.3g} by published efficiencies "
        f"({listed}); "
        f"{step['tokens_per_second_per_gpu'] or 0.0:,.0f} tokens/s per GPU{share}."
    )


def _components(option: Option) -> TextTable:
    """Return one row per component and key, one column per phase (only the peak if narrow)."""
    phases = list(option.device.phase_bytes)
    rows: dict[tuple[str, str, str], dict[Any, int]] = {}
    for part in option.device.components:
        row = rows.setdefault((part.name, part.pointer, part.formula), {})
        row.update(dict.fromkeys(part.phases, part.bytes))
    ordered = sorted(rows.items(), key=lambda row: -max(row[1].values()))
    if terminal_width() < WIDE:
        return _at_the_peak(option, ordered)
    formulas = terminal_width() >= WIDEST
    last = ["key", "formula"] if formulas else ["key"]
    table = TextTable("component (GiB)", *(f">{phase}" for phase in phases), *last)
    for (name, pointer, formula), sizes in ordered:
        cells = [in_gib(sizes[phase]) if phase in sizes else "" for phase in phases]
        last = [_key(pointer), formula] if formulas else [_short_key(pointer)]
        table.add_row(name, *cells, *last)
    totals = [in_gib(option.device.phase_bytes[phase]) for phase in phases]
    table.add_row("total", *totals, *([""] * len(last)), bold=True)
    return table


WIDE, WIDEST = 110, 150
"""Terminal widths from which all phases, and also the formulas, are shown."""


def _at_the_peak(option: Option, ordered: "list[tuple[Any, dict[Any, int]]]") -> TextTable:
    """Return the components at the peak, in GiB, with the last part of the key."""
    phase = option.device.peak_phase
    table = TextTable(f"component, in {phase}", ">GiB", "key")
    for (name, pointer, _), sizes in ordered:
        if phase in sizes:
            table.add_row(name, in_gib(sizes[phase]), _short_key(pointer))
    phases = (f"{phase} {in_gib(count)}" for phase, count in option.device.phase_bytes.items())
    total = in_gib(option.device.peak_bytes)
    table.add_row("total", total, ", ".join(phases), bold=True)
    return table


def _short_key(pointer: str) -> str:
    """Return the key without the zero_optimization block."""
    return _key(pointer).removeprefix("zero_optimization.")


def _key(pointer: str) -> str:
    return dotted(pointer) if pointer else ""


def _levels(option: Option) -> TextTable:
    """Return the steps from the allocated peak to the memory of the GPU."""
    device = option.device
    table = TextTable("", ">GiB per GPU", "")
    table.add_row("peak allocated", size_cell(device.peak_bytes), f"in {device.peak_phase}")
    if device.low_bytes is not None and device.high_bytes is not None:
        span = f"{size_cell(device.low_bytes)} to {size_cell(device.high_bytes)}"
        table.add_row("", "", f"{span}, depending on assumptions")
    for name, count in device.beside_peak.items():
        table.add_row(name, size_cell(count), _BESIDE[name])
    if MOVED in device.beside_peak:
        table.add_row("total", size_cell(device.needed_bytes), "")
    elif device.beside_peak:
        least, most = device.least_needed_bytes, device.most_needed_bytes
        # A calibrated estimate has no range.
        between = (
            f"{size_cell(least)} to {size_cell(most)} by fragmentation" if least < most else ""
        )
        table.add_row("required per GPU", size_cell(device.needed_bytes), between)
        table.add_row("nvidia-smi (approx.)", *_visible(option))
    for fit in option.fits:
        verdict = "left" if fit.fits else _TOO_MUCH[fit.may_fit]
        table.add_row(f"{fit.device} has", size_cell(fit.memory_bytes), "")
        table.add_row("", size_cell(abs(fit.headroom_bytes)), verdict, bold=not fit.fits)
    return table


def _visible(option: Option) -> tuple[str, str]:
    """Return what nvidia-smi shows, at most the memory of the device, and what is in it."""
    shown = min([option.device.visible_bytes, *(fit.memory_bytes for fit in option.fits)])
    if shown == option.device.visible_bytes or not all(fit.fits for fit in option.fits):
        return size_cell(option.device.visible_bytes), "incl. cached memory"
    cached = option.device.visible_bytes - option.device.needed_bytes
    return size_cell(
        shown
    ), f"all of it: up to {size_cell(cached)} GiB cached, freed when memory runs out"


def print_host(option: Option, facts: "Facts", bound: str = "") -> None:
    """Print the required host memory, unless the verdict already contains it."""
    line = host_memory.requirement(option.host, facts, bound)
    in_verdict = not bound and host_or_disk_shortfall(option.host, option.nvme, facts)
    if line and not in_verdict:
        print_text(paragraph(line))


_TOO_MUCH = {False: "over: out of memory", True: "over, unless fragmentation is low"}
"""By whether it may fit."""
_REQUIRED = (
    "Required per GPU: the allocated peak, allocator overhead, the CUDA context and NCCL. Cached "
    "memory is released when memory runs low, at the cost of time."
)
_BESIDE = {
    MARGIN: "rounding and fragmentation",
    OUTSIDE: "CUDA context, NCCL",
    MOVED: "shared memory",
}


def _tier(name: str, tier: TierMemory, host: "HostFacts | None") -> TextTable:
    wide = terminal_width() >= WIDE
    columns = ["key", "formula"] if wide else ["formula"]
    table = TextTable(f"{name} memory", ">GiB per node", *columns)

    def add(name: str, count: int, formula: str = "", key: str = "", bold: bool = False) -> None:
        table.add_row(name, size_cell(count), *([key] if wide else []), formula, bold=bold)

    for part in tier.components:
        add(part.name, part.bytes, part.formula, _key(part.pointer))
    add("total, during training", tier.bytes)
    if tier.peak_bytes > tier.bytes:
        peak = "peak, while building" if tier.is_building_worst else "peak, with rounding"
        add(peak, tier.peak_bytes, bold=True)
    if tier.pinned_bytes:
        add("pinned", tier.pinned_bytes, "rounded up to powers of two")
    if host is not None and host.memory_bytes is not None and host.usable_bytes is not None:
        left = host.usable_bytes - tier.peak_bytes
        add("memory of the node", host.memory_bytes)
        reserved = host.memory_bytes - host.usable_bytes
        add("reserved for the system", reserved, "kernel, daemons, page cache")
        add("", abs(left), "left" if left >= 0 else "over", bold=left < 0)
    return table

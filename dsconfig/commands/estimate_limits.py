"""Output of ``estimate --fit`` (limits of the hardware) and ``--compat`` (DeepSpeed's tables)."""

from typing import TYPE_CHECKING

from dsconfig.commands import host_memory
from dsconfig.commands.estimate_tables import scientific, size_cell
from dsconfig.commands.notes import note
from dsconfig.commands.printing import print_json, print_text
from dsconfig.commands.progress import progress
from dsconfig.commands.text_table import TextTable, emphasised, paragraph
from dsconfig.cost import compat, limits, rendering
from dsconfig.project.errors import UsageError, usage
from dsconfig.report.sizes import size

if TYPE_CHECKING:
    from dsconfig.cost.limits import Limit
    from dsconfig.facts import Facts
    from dsconfig.project.inference import TargetProgram
    from dsconfig.runtimes.effective import Effective


def print_limits(
    facts: "Facts",
    effective: "Effective | None",
    program: "TargetProgram",
    output_format: str,
) -> None:
    """Print the largest model, batch and sequence that fit, and the fewest GPUs."""
    with usage(), progress("Searching for limits"):
        answers = limits.limits(facts, effective, runtime=program.runtime)
    if not answers:
        if facts.outline is not None:
            raise UsageError(facts.why_no_model)
        missing = [] if facts.world_size else ["--gpus"]
        missing += [] if facts.model else ["--model"]
        raise UsageError(f"--fit requires {' or '.join(missing)}")
    if output_format == "json":
        print_json({**rendering.limits_data(answers), **program.data})
        return

    _print_table(answers, facts, program)
    if facts.model is not None and not (facts.training and facts.training.sequence_length):
        note("the largest micro batch requires --seq-len")
    uses_host = any(limit.option and limit.option.host.bytes for limit in answers)
    if uses_host and not (facts.host and facts.host.memory_bytes):
        note(host_memory.ASSUMED)


def _print_table(limits: "tuple[Limit, ...]", facts: "Facts", program: "TargetProgram") -> None:
    """Print the limits, each with the configuration that reaches it."""
    device = facts.device.name if facts.device else "the GPU"
    devices = f"{facts.world_size} x {device}" if facts.world_size else device
    print_text(f"limits on {devices}\n{paragraph(program.headline)}\n")
    host_is_unknown = facts.host is None or not facts.host.memory_bytes
    for limit in limits:
        answer = "none fits" if limit.value is None else _count(limit.value)
        host = limit.option.host.peak_bytes if limit.option and host_is_unknown else 0
        condition = f", with {size(host)} of host memory per node" if host else ""
        print_text(emphasised(f"{limit.question}: {answer}{condition}"))
    print_text()
    table = TextTable("limit", ">value", ">GPU (GiB)", ">host (GiB)", "configuration")
    for limit in limits:
        if limit.value is None or limit.option is None:
            table.add_row(limit.question, "none fits", "", "", "")
            continue
        value = _count(limit.value)
        option = limit.option
        sizes = size_cell(option.device.needed_bytes), size_cell(option.host.peak_bytes)
        table.add_row(limit.question, value, *sizes, limit.how)
    print_text(str(table))


def _count(value: int) -> str:
    return scientific(value) if value >= 10**7 else f"{value:,}"


def print_compat(facts: "Facts", program: str, output_format: str) -> None:
    """Print the tables of DeepSpeed's own estimator verbatim, or their bytes as JSON."""
    if program != "deepspeed":
        raise UsageError(f"--compat: {program!r} is not supported; use --compat deepspeed")
    if facts.outline is not None:
        raise UsageError(facts.why_no_model)
    if facts.model is None or facts.world_size is None:
        raise UsageError("--compat requires --model and --gpus")
    nodes = facts.nodes or 1
    hardware = (facts.world_size // nodes, nodes)
    largest = facts.model.largest_module or facts.model.largest_tensor or 0
    if facts.model.assumed:
        note(f"assuming the largest layer of {facts.model.assumed[0]}")
    if output_format == "json":
        print_json(compat.as_data(facts.model.parameters, largest, *hardware))
        return
    print_text(compat.zero2_table(facts.model.parameters, *hardware))
    print_text(compat.zero3_table(facts.model.parameters, largest, *hardware), nl=False)

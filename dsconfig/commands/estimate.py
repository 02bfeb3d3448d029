"""``dsconfig estimate [FILE]``: bytes on each GPU, on the host and on NVMe, and why."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import dsconfig
from dsconfig.commands import inference, memory_options, options
from dsconfig.commands.errors import UsageError, usage
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report import FileReport, Report
from dsconfig.report.render import render
from dsconfig.report.sizes import GIB, gib, in_gib

with lazy_imports():
    from dsconfig.commands import assumed, prepare, run_logs, screen, verdict, writing
    from dsconfig.commands import estimate_tables as tables
    from dsconfig.cost import (
        assumptions,
        calibration,
        compat,
        estimator,
        limits,
        log_comparison,
        plots,
        remedies,
        rendering,
        search,
    )
    from dsconfig.facts import inputs, machine, run_log

if TYPE_CHECKING:
    from dsconfig.cost.assumptions import Assumption
    from dsconfig.cost.estimate import Estimate, Option
    from dsconfig.cost.remedies import Change
    from dsconfig.facts import Facts
    from dsconfig.facts.run_log import RunLog
    from dsconfig.runtimes.base import Runtime
    from dsconfig.runtimes.effective import Effective
    from dsconfig.source import Document


class Asked(NamedTuple):
    """What is told beside the estimate, or in its place, and in which form."""

    fit: Annotated[
        bool, typer.Option("--fit", help="Largest model, batch and sequence; fewest GPUs.")
    ] = False
    compat: Annotated[
        str | None, typer.Option(metavar="deepspeed", help="Print DeepSpeed's own two tables.")
    ] = None
    measured: Annotated[
        str | None, typer.Option(metavar="SIZE", help="One real peak, to calibrate by: 61.2GiB.")
    ] = None
    measured_as: Annotated[
        str, typer.Option(help="What was measured: allocated, reserved or visible.")
    ] = "visible"
    measured_here: Annotated[
        bool,
        typer.Option(
            "--measured-here", help="Measure memory, PCIe and the disk of --nvme for the step."
        ),
    ] = False
    log: Annotated[
        Path | None,
        typer.Option(metavar="TRAIN.log", help="What a run printed, beside the estimate."),
    ] = None
    plot: Annotated[Path | None, typer.Option(metavar="OUT.png|svg", help="Write a bar chart.")] = (
        None
    )
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write one self-contained page.")
    ] = None
    fail_if_oom: options.FailIfOom = False
    output_format: options.FullOrJson = "full"


class Answer(NamedTuple):
    """An estimate with what it is of, and what else is told with it."""

    found: "Estimate"
    facts: "Facts"
    program: inference.Program
    effective: "Effective | None"
    """None where no file was given: the estimate is of all usual choices."""
    written: Mapping[str, Any]
    """The file as it is written."""
    log: "RunLog | None"
    changes: "tuple[Change, ...]" = ()
    others: "tuple[Assumption, ...]" = ()

    @property
    def option(self) -> "Option":
        """The file as it was priced, or the first of the choices."""
        return self.found.options[0]

    @property
    def ran_out(self) -> bool:
        """Whether the run of the log did not fit."""
        return self.log is not None and self.log.out_of_memory is not None


@options.with_groups
@options.with_facts
def estimate(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="A config; without one, all usual choices."),
    ] = None,
    *,
    recompute: memory_options.Recompute = None,
    style: memory_options.Style,
    overrides: options.Overrides = None,
    runtime: options.RuntimeName = None,
    deepspeed_version: options.DeepSpeedVersion = None,
    asked: Asked,
    facts: "Facts",
) -> None:
    """How many bytes on each GPU, on the host and on NVMe, and which key causes them.

    Exit code 1 when the config has errors, or with --fail-if-oom when it does not fit.
    """
    facts = memory_options.with_style(facts, style, recompute)
    facts = options.with_this_machine(facts)
    if asked.measured_here:
        facts = options.measured_here(facts)
    if asked.fail_if_oom and (facts.device is None or facts.device.memory_bytes is None):
        raise UsageError("--fail-if-oom needs the card: give --device or --device-memory")
    if asked.log is not None and file is None:
        raise UsageError("--log needs the config that was run: give FILE")
    if str(asked.html) == "-":
        raise UsageError("--html: name a file; the tables take standard output")
    if asked.compat is not None:
        print_compat(facts, asked.compat, asked.output_format)
        return
    document = None if file is None else options.load(file, overrides)
    if document is not None:
        facts = options.completed(facts, document)
    program = inference.program(
        runtime, deepspeed_version, document=document, source=file or "", facts=facts
    )
    effective = None
    if document is not None:
        for assume in assumed.FOR_AN_ESTIMATE:
            facts = assume(document, facts, program.runtime)
        effective = _resolved(document, facts, program.runtime)
    if asked.fit:
        print_limits(facts, effective, program, asked.output_format)
        return
    answer = _answer(asked, facts, program, effective, document.value if document else {})
    if asked.plot is not None:
        with usage():
            plots.write_plot(answer.found, asked.plot)
    if asked.html is not None:
        said = tables.overall(answer.found, facts, effective is not None)
        told = verdict.remedy_data(answer.changes, program.runtime, answer.written)
        with usage():
            writing.write(asked.html, plots.html_page(answer.found, said, told), option="--html")
    _show(answer, asked.output_format)
    if asked.fail_if_oom and all(tables.not_fitting(one, facts) for one in answer.found.options):
        raise typer.Exit(1)


def _answer(
    asked: Asked,
    facts: "Facts",
    program: inference.Program,
    effective: "Effective | None",
    written: Mapping[str, Any],
) -> Answer:
    """The price of a config, or of all usual choices, and what would change it."""
    with usage():
        if effective is not None:
            found = estimator.estimate(effective, facts, runtime=program.runtime)
        else:
            found = search.table(facts, runtime=program.runtime)
    if asked.measured is not None:
        found = _calibrated(found, asked.measured, asked.measured_as)
    with usage():
        log = None if asked.log is None else run_log.from_path(asked.log)
    answer = Answer(found, facts, program, effective, written, log)
    if effective is None:
        return answer
    if answer.ran_out or tables.not_fitting(answer.option, facts):
        where = smaller_card(facts, answer.option, log) if log is not None else facts
        changes = remedies.cheapest_changes(effective, where, runtime=program.runtime)
        answer = answer._replace(changes=changes)
    if asked.measured is not None:  # which answers what nobody said
        return answer
    known = program.release_from not in inference.UNASKED
    others = assumptions.decisive_assumptions(
        answer.option, effective, facts, program.runtime, release_is_known=known
    )
    return answer._replace(others=others)


def _resolved(document: "Document", facts: "Facts", program: "Runtime") -> "Effective":
    """The concrete config; its errors are printed and end the command with exit code 1."""
    report = dsconfig.validate(document, facts, runtime=program, version=program.version)
    result = dsconfig.resolve(document, facts, runtime=program, version=program.version)
    more = Report(prepare.not_told(result.diagnostics, report))
    errors = report.errors + more.errors
    if errors or result.effective is None:
        shown = FileReport(document.name, document.text, Report(errors))
        typer.echo(render("full", [shown]))
        typer.echo("no estimate: the config has errors", err=True)
        raise typer.Exit(1)
    assumed.say_idle_flags(result.effective, facts)
    assumed.say_fp32(result.effective, document, program)
    return result.effective


def _calibrated(found: "Estimate", measured: str, what: str) -> "Estimate":
    if len(found.options) != 1:
        raise UsageError("--measured needs the config that was run: give FILE")
    with usage():
        size = inputs.parse_bytes(measured, "--measured")
    if what not in ("allocated", "reserved", "visible"):
        raise UsageError(f"--measured-as: {what!r} is not allocated, reserved or visible")
    with usage("--measured"):
        fitted = calibration.calibrate(found.options[0], size, what=what)
    typer.echo(
        f"measured {gib(size, 2)}, estimated {in_gib(fitted.estimated_bytes)} "
        f"GiB: off by {fitted.error:+.1%}. From here on: activations x "
        f"{fitted.slope:.2f}, {fitted.constant_bytes / GIB:+.2f} GiB",
        err=True,
    )
    if fitted.slope < 0.5:
        typer.echo(
            "less than half of the activations: was it run with --recompute full, "
            "--fused-kernels or a shorter --seq-len?",
            err=True,
        )
    return calibration.calibrated(found, fitted)


def _show(answer: Answer, output_format: str) -> None:
    found, facts, program, log = answer.found, answer.facts, answer.program, answer.log
    comparison = None
    if log is not None:
        batch = answer.effective.batch if answer.effective is not None else None
        samples = None if batch is None else batch.global_batch
        comparison = log_comparison.compare(log, answer.option, samples)
    if output_format == "json":
        data = {**rendering.as_data(found), **program.data}
        for each, told in zip(found.options, data["options"], strict=True):
            told["lacks"] = search.host_or_disk_shortfall(each.host, each.nvme, facts)
        if answer.effective is not None:
            changes = verdict.remedy_data(answer.changes, program.runtime, answer.written)
            data |= {"remedies": changes, "unsaid": verdict.assumption_data(answer.others)}
        if comparison is not None:
            data["log"] = log_comparison.as_data(comparison)
        typer.echo(json.dumps(data, indent=2))
    elif answer.effective is None:
        with screen.ending_with(tables.overall(found, facts)):
            tables.print_table(found, facts, program)
    else:
        lines = verdict.remedy_lines(answer.changes[:1], program.runtime, answer.written)
        said = tables.overall(found, facts, is_config=True)
        with screen.ending_with(said, *(lines if answer.changes else ())):
            tables.print_depth(answer)
        if log is not None and comparison is not None:
            run_logs.print_comparison(log, comparison)
            if answer.ran_out and not tables.not_fitting(answer.option, facts):
                for line in verdict.remedy_lines(answer.changes, program.runtime, answer.written):
                    typer.echo(line)


def smaller_card(facts: "Facts", option: "Option", log: "RunLog") -> "Facts":
    """The facts with so much less memory as the run lacked, where the estimate fits the card."""
    lack = log.out_of_memory
    if lack is None or tables.not_fitting(option, facts):
        return facts
    device = facts.device or machine.DeviceFacts(name="the card")
    least = option.device.needed_bytes - lack.tried
    return replace(facts, device=replace(device, memory_bytes=max(least, 1)))


def print_limits(
    facts: "Facts",
    effective: "Effective | None",
    program: inference.Program,
    output_format: str,
) -> None:
    """The inverse: what is the most that fits."""
    with usage():
        found = limits.limits(facts, effective, runtime=program.runtime)
    if not found:
        if facts.outline is not None:
            raise UsageError(facts.why_no_model)
        needed = [] if facts.world_size else ["--gpus"]
        needed += [] if facts.model else ["--model"]
        raise UsageError(f"--fit: give {' or '.join(needed)}")
    if output_format == "json":
        typer.echo(json.dumps({**rendering.limits_data(found), **program.data}, indent=2))
        return

    tables.print_limits(found, facts, program)
    if facts.model is not None and not (facts.training and facts.training.sequence_length):
        typer.echo("largest micro batch: give --seq-len", err=True)
    uses_host = any(limit.option and limit.option.host.bytes for limit in found)
    if uses_host and not (facts.host and facts.host.memory_bytes):
        typer.echo("main memory is taken to be as large as needed: give --host-memory", err=True)


def print_compat(facts: "Facts", program: str, output_format: str) -> None:
    """DeepSpeed's own tables for these facts, to the letter; as JSON their bytes."""
    if program != "deepspeed":
        raise UsageError(f"--compat: {program!r} is unknown; write --compat deepspeed")
    if facts.outline is not None:
        raise UsageError(facts.why_no_model)
    if facts.model is None or facts.world_size is None:
        raise UsageError("--compat needs the model and the devices: give --model and --gpus")
    nodes = facts.nodes or 1
    hardware = (facts.world_size // nodes, nodes)
    largest = facts.model.largest_module or facts.model.largest_tensor or 0
    if facts.model.assumed:
        typer.echo(f"the largest layer is that of {facts.model.assumed[0]}", err=True)
    if output_format == "json":
        typer.echo(json.dumps(compat.as_data(facts.model.parameters, largest, *hardware), indent=2))
        return
    typer.echo(compat.zero2_table(facts.model.parameters, *hardware))
    typer.echo(compat.zero3_table(facts.model.parameters, largest, *hardware), nl=False)

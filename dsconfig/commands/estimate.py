"""``dsconfig estimate [FILE]``: memory per GPU, on the host and on NVMe, by component."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dsconfig.commands import memory_options, options
from dsconfig.commands.notes import note
from dsconfig.commands.progress import progress
from dsconfig.facts.inputs import in_flags
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import inference
from dsconfig.project.errors import UsageError, usage
from dsconfig.report import FileReport, Report
from dsconfig.report.render import render
from dsconfig.report.sizes import GIB, gib, in_gib

with lazy_imports():
    from dsconfig.commands import (
        despite_errors,
        fact_defaults,
        host_memory,
        log_facts,
        run_logs,
        screen,
        suggested_changes,
        verdict,
        writing,
    )
    from dsconfig.commands import estimate_tables as tables
    from dsconfig.cost import (
        assumptions,
        calibration,
        compat,
        estimator,
        fit,
        host_memory_fixes,
        limits,
        log_comparison,
        plots,
        remedies,
        rendering,
        usual,
        workload,
    )
    from dsconfig.facts import inputs, machine, run_log
    from dsconfig.report.render import as_json as machine_form

if TYPE_CHECKING:
    from dsconfig.cost.assumptions import Assumption
    from dsconfig.cost.estimate import Estimate, Option
    from dsconfig.cost.remedies import Change
    from dsconfig.facts import Facts
    from dsconfig.facts.run_log import RunLog
    from dsconfig.report.render import as_json as machine_form
    from dsconfig.runtimes.effective import Effective
    from dsconfig.source import Document


class EstimateOptions(NamedTuple):
    """Additional inputs and outputs of an estimate, one flag per field."""

    fit: Annotated[
        bool,
        typer.Option(
            "--fit", help="Find the largest model, batch and sequence, and the fewest GPUs."
        ),
    ] = False
    compat: Annotated[
        str | None,
        typer.Option(metavar="deepspeed", help="Print the tables of DeepSpeed's own estimator."),
    ] = None
    measured: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Calibrate with a measured peak, e.g. 61.2GiB."),
    ] = None
    measured_as: Annotated[
        str,
        typer.Option(
            metavar="KIND", help="Kind of --measured: allocated, reserved or visible (nvidia-smi)."
        ),
    ] = "visible"
    measured_here: Annotated[
        bool,
        typer.Option(
            "--measured-here",
            help="Measure host memory, PCIe and NVMe bandwidth for the step time.",
        ),
    ] = False
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="TRAIN.log",
            help="Compare with the log of a run; also a source of GPUs, releases and config.",
        ),
    ] = None
    plot: Annotated[Path | None, typer.Option(metavar="OUT.png|svg", help="Write a bar chart.")] = (
        None
    )
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a self-contained HTML page.")
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the config with the fastest change of the file that makes it fit.",
        ),
    ] = None
    fail_if_oom: options.FailIfOom = False
    output_format: options.FullOrJson = "full"


NO_SEQ_LEN = (
    "the run ran out of memory, but without --seq-len activations are not estimated, so that no "
    "change can be suggested: specify --seq-len"
)


class Result(NamedTuple):
    """An estimate with its inputs, the fixes and the decisive assumptions."""

    estimate: "Estimate"
    facts: "Facts"
    program: inference.TargetProgram
    effective: "Effective | None"
    """None without a file: the estimate covers the usual configurations."""
    document: "Document | None"
    log: "RunLog | None"
    changes: "tuple[Change, ...]" = ()
    others: "tuple[Assumption, ...]" = ()
    host_fixes: tuple[str, ...] = ()
    """Settings with which offloaded states fit the host memory."""
    errors: Report = Report(())
    assumed: tuple[str, ...] = ()
    """Notes on the assumptions for facts that are not specified."""

    @property
    def option(self) -> "Option":
        """The estimated config, or the first of the usual configurations."""
        return self.estimate.options[0]

    @property
    def ran_out(self) -> bool:
        """Whether the logged run ran out of memory."""
        return self.log is not None and self.log.out_of_memory is not None

    @property
    def needs_seq_len(self) -> bool:
        """Whether changes cannot be suggested: the run failed, and activations are unknown."""
        return self.ran_out and self.estimate.inputs["sequence_length"] is None


@options.with_groups
@options.with_facts
def estimate(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="Config file (default: compare the usual configurations)."
        ),
    ] = None,
    *,
    recompute: memory_options.Recompute = None,
    style: memory_options.Style,
    overrides: options.Overrides = None,
    runtime: options.RuntimeName = None,
    deepspeed_version: options.DeepSpeedVersion = None,
    extra: EstimateOptions,
    facts: "Facts",
) -> None:
    """Estimate the memory per GPU, on the host and on NVMe, by component and config key.

    Exit code 1 if the run cannot start, or with --fail-if-oom if it does not fit. Errors are
    printed above the estimate; exit code 0 means that an estimate was made, not that it fits.
    """
    log = None
    if extra.log is not None:
        log, facts, deepspeed_version = _read_log(extra.log, file, facts, deepspeed_version)
    facts = options.with_this_machine(facts)
    if extra.measured_here:
        facts = options.measured_here(facts)
    _reject_contradictions(extra, file, facts, log)
    if extra.compat is not None:
        print_compat(facts, extra.compat, extra.output_format)
        return
    document = None if file is None else options.load(file, overrides)
    if document is None and log is not None:
        document = options.parsed(dict(log.config or {}), f"config in {extra.log}", overrides)
    if document is not None:
        facts = options.completed(facts, document)
    facts = memory_options.with_master_weights(facts, style)
    program = inference.target_program(
        runtime, deepspeed_version, document=document, source=file or "", facts=facts
    )
    facts = memory_options.with_style(facts, style, recompute)
    effective, errors, assumed = None, Report(()), list[str]()
    if document is not None:
        with fact_defaults.collected() as assumed:
            for assume in fact_defaults.FOR_AN_ESTIMATE:
                facts = assume(document, facts, program.runtime)
        if not extra.fit:
            with usage():
                workload.require_facts(facts)
        effective, errors = despite_errors.resolved(document, facts, program, extra.output_format)
        if errors.diagnostics and extra.output_format != "json":
            typer.echo(render("full", [FileReport(document.name, document.text, errors)]))
    if extra.fit:
        print_limits(facts, effective, program, extra.output_format)
        raise typer.Exit(1 if despite_errors.prevents_start(errors) else 0)
    result = _result(extra, facts, program, effective, document, log)
    result = result._replace(errors=errors, assumed=tuple(assumed))
    _write_plots(extra, result)
    _show(result, extra.output_format)
    if result.needs_seq_len:
        note(NO_SEQ_LEN)
    if extra.output is not None and document is not None:
        _write_config(extra.output, result, document)
    is_oom = all(tables.not_fitting(option, facts) for option in result.estimate.options)
    if despite_errors.prevents_start(errors) or (extra.fail_if_oom and is_oom):
        raise typer.Exit(1)
    if is_oom:
        note(options.EXIT_0_ALTHOUGH_OOM)


def _read_log(
    path: Path, file: str | None, facts: "Facts", version: str | None
) -> "tuple[RunLog, Facts, str | None]":
    """Return the log of a run, the facts and the DeepSpeed release with those it states."""
    with usage():
        log = run_log.from_path(path)
    facts, added = log_facts.with_log(facts, log, path)
    if version is None and log_facts.release(log) is not None:
        version = log_facts.release(log)
        added.append(f"DeepSpeed {version}")
    if file is None and log.config is not None:
        added.append("the config")
    log_facts.print_source(path, added)
    return log, facts, version


def _reject_contradictions(
    extra: EstimateOptions, file: str | None, facts: "Facts", log: "RunLog | None"
) -> None:
    """Raise UsageError for options that require others."""
    if extra.fail_if_oom and (facts.device is None or facts.device.memory_bytes is None):
        raise UsageError("--fail-if-oom requires --device or --device-memory")
    if log is not None and file is None and log.config is None:
        raise UsageError("--log requires FILE: the log does not contain the config of the run")
    if str(extra.html) == "-":
        raise UsageError("--html requires a file name; standard output is used by the tables")
    if extra.output is not None and file is None:
        raise UsageError("--output requires FILE, the config to change")


def _write_plots(extra: EstimateOptions, result: Result) -> None:
    """Write the bar chart and the HTML page that were requested."""
    if extra.plot is not None:
        with usage():
            plots.write_plot(result.estimate, extra.plot)
    if extra.html is not None:
        summary = tables.overall(result.estimate, result.facts, result.effective is not None)
        fixes = _changes(result)
        with usage():
            page = plots.html_page(result.estimate, summary, fixes)
            writing.write(extra.html, page, option="--html")


def _write_config(path: Path, result: Result, document: "Document") -> None:
    """Write the config with a change that makes it fit, unless it fits."""
    if result.needs_seq_len:
        note(f"nothing written to {path}")
    elif result.changes:
        program = result.program.runtime
        suggested_changes.write_changed(path, result.changes, program, document)
    else:
        note(f"nothing written to {path}: the config fits")


def _result(
    extra: EstimateOptions,
    facts: "Facts",
    program: inference.TargetProgram,
    effective: "Effective | None",
    document: "Document | None",
    log: "RunLog | None",
) -> Result:
    """Estimate the config or the usual configurations; find fixes and decisive assumptions."""
    with usage():
        if effective is not None:
            estimates = estimator.estimate(effective, facts, runtime=program.runtime)
        else:
            estimates = usual.table(facts, runtime=program.runtime)
    if extra.measured is not None:
        estimates = _calibrated(estimates, extra.measured, extra.measured_as)
    result = Result(estimates, facts, program, effective, document, log)
    if effective is None:
        return result
    if not result.needs_seq_len and (result.ran_out or tables.not_fitting(result.option, facts)):
        limit = smaller_device(facts, result.option, log) if log is not None else facts
        changes = remedies.cheapest_changes(effective, limit, runtime=program.runtime)
        result = result._replace(changes=changes, host_fixes=_host_fixes(result))
    if extra.measured is not None:  # the measurement settles the assumptions
        return result
    release_is_known = program.release_source not in inference.UNSPECIFIED
    others = assumptions.decisive_assumptions(
        result.option, effective, facts, program.runtime, release_is_known=release_is_known
    )
    return result._replace(others=others)


def _host_fixes(result: Result) -> tuple[str, ...]:
    """Return settings with which offloaded states fit the host memory, if they do not fit now."""
    option, facts, effective = result.option, result.facts, result.effective
    available = facts.host.usable_bytes if facts.host is not None else None
    if effective is None or available is None or option.host.bytes <= available:
        return ()
    program = result.program.runtime
    return tuple(host_memory_fixes.ways_to_fit(effective, facts, available, program=program))


def _calibrated(estimates: "Estimate", measured: str, what: str) -> "Estimate":
    if len(estimates.options) != 1:
        raise UsageError("--measured requires FILE, the config of that run")
    with usage():
        size = inputs.parse_bytes(measured, "measured")
    if what not in ("allocated", "reserved", "visible"):
        raise UsageError(f"--measured-as: {what!r} is not one of allocated, reserved, visible")
    with usage("--measured"):
        fitted = calibration.calibrate(estimates.options[0], size, what=what)
    note(
        f"measured {gib(size, 2)}, estimated {in_gib(fitted.estimated_bytes)} "
        f"GiB: error {fitted.error:+.1%}. Calibrated: activations x "
        f"{fitted.slope:.2f}, constant {fitted.constant_bytes / GIB:+.2f} GiB"
    )
    if fitted.slope < 0.5:
        note(
            "the run used less than half of the estimated activations: check --recompute full, "
            "--fused-kernels and --seq-len"
        )
    return calibration.calibrated(estimates, fitted)


def _show(result: Result, output_format: str) -> None:
    estimates, facts, program, log = result.estimate, result.facts, result.program, result.log
    comparison = None
    if log is not None:
        batch = result.effective.batch if result.effective is not None else None
        samples = None if batch is None else batch.global_batch
        comparison = log_comparison.compare(log, result.option, samples)
    if output_format == "json":
        data = {**rendering.as_data(estimates), **program.data}
        data["inputs"]["assumed"] += result.assumed
        data["host_available_bytes"] = facts.host.usable_bytes if facts.host else None
        for option, entry in zip(estimates.options, data["options"], strict=True):
            entry["lacks"] = fit.host_or_disk_shortfall(option.host, option.nvme, facts)
        if result.effective is not None:
            data |= {"remedies": _changes(result), "unsaid": verdict.assumption_data(result.others)}
            data["host_memory_fixes"] = list(result.host_fixes)
        data["diagnostics"] = [
            machine_form.diagnostic_data(error) for error in result.errors.errors
        ]
        if comparison is not None:
            data["log"] = log_comparison.as_data(comparison)
        typer.echo(json.dumps(data, indent=2))
    elif result.effective is None:
        with screen.ending_with(tables.overall(estimates, facts)):
            tables.print_table(estimates, facts, program)
    elif result.document is not None:
        show = partial(
            suggested_changes.change_lines, runtime=program.runtime, document=result.document
        )
        lines = show(result.changes[:1])
        summary = tables.overall(estimates, facts, is_config=True)
        with screen.ending_with(summary, *(lines if result.changes else ())):
            tables.print_depth(result)
        if log is not None and comparison is not None:
            run_logs.print_comparison(log, comparison)
            if result.ran_out and not tables.not_fitting(result.option, facts):
                for line in show(result.changes):
                    typer.echo(line)


def _changes(result: Result) -> list[dict[str, Any]]:
    if result.document is None:
        return []
    return suggested_changes.change_data(result.changes, result.program.runtime, result.document)


def smaller_device(facts: "Facts", option: "Option", log: "RunLog") -> "Facts":
    """Reduce the device memory by what the run failed to allocate, if the estimate fits."""
    failure = log.out_of_memory
    if failure is None or tables.not_fitting(option, facts):
        return facts
    device = facts.device or machine.DeviceFacts(name="the GPU")
    memory = option.device.needed_bytes - failure.tried
    return replace(facts, device=replace(device, memory_bytes=max(memory, 1)))


def print_limits(
    facts: "Facts",
    effective: "Effective | None",
    program: inference.TargetProgram,
    output_format: str,
) -> None:
    """Print the largest model, batch and sequence that fit, and the fewest GPUs."""
    with usage(), progress("Searching for limits"):
        answers = limits.limits(facts, effective, runtime=program.runtime)
    if not answers:
        if facts.outline is not None:
            raise UsageError(in_flags(facts.why_no_model))
        missing = [] if facts.world_size else ["--gpus"]
        missing += [] if facts.model else ["--model"]
        raise UsageError(f"--fit requires {' or '.join(missing)}")
    if output_format == "json":
        typer.echo(json.dumps({**rendering.limits_data(answers), **program.data}, indent=2))
        return

    tables.print_limits(answers, facts, program)
    if facts.model is not None and not (facts.training and facts.training.sequence_length):
        note("the largest micro batch requires --seq-len")
    uses_host = any(limit.option and limit.option.host.bytes for limit in answers)
    if uses_host and not (facts.host and facts.host.memory_bytes):
        note(host_memory.ASSUMED)


def print_compat(facts: "Facts", program: str, output_format: str) -> None:
    """Print the tables of DeepSpeed's own estimator verbatim, or their bytes as JSON."""
    if program != "deepspeed":
        raise UsageError(f"--compat: {program!r} is not supported; use --compat deepspeed")
    if facts.outline is not None:
        raise UsageError(in_flags(facts.why_no_model))
    if facts.model is None or facts.world_size is None:
        raise UsageError("--compat requires --model and --gpus")
    nodes = facts.nodes or 1
    hardware = (facts.world_size // nodes, nodes)
    largest = facts.model.largest_module or facts.model.largest_tensor or 0
    if facts.model.assumed:
        note(f"assuming the largest layer of {facts.model.assumed[0]}")
    if output_format == "json":
        typer.echo(json.dumps(compat.as_data(facts.model.parameters, largest, *hardware), indent=2))
        return
    typer.echo(compat.zero2_table(facts.model.parameters, *hardware))
    typer.echo(compat.zero3_table(facts.model.parameters, largest, *hardware), nl=False)

"""``dsconfig estimate [FILE]``: memory per GPU, on the host and on NVMe, by component."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsconfig.commands import launched, options
from dsconfig.commands.estimate_result import EstimateOptions, Result
from dsconfig.commands.notes import note
from dsconfig.commands.printing import print_json, print_text
from dsconfig.facts.request import FactsRequest
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import assumed_facts, inference
from dsconfig.project.errors import UsageError, usage
from dsconfig.project.verdict import not_fitting
from dsconfig.report import FileReport, Report
from dsconfig.report.render import render
from dsconfig.report.sizes import GIB, gib, in_gib

with lazy_imports():
    from dsconfig.commands import (
        estimate_limits,
        fact_notes,
        log_facts,
        prepare,
        run_logs,
        screen,
        suggested_changes,
        writing,
    )
    from dsconfig.commands import estimate_tables as tables
    from dsconfig.cost import (
        assumptions,
        calibration,
        estimator,
        fit,
        host_memory_fixes,
        log_comparison,
        plots,
        rendering,
        usual,
        workload,
    )
    from dsconfig.facts import inputs, launch_request, run_log
    from dsconfig.project import accepted_changes, changes, despite_errors, verdict
    from dsconfig.report.render import as_json as machine_form

if TYPE_CHECKING:
    from dsconfig.cost.estimate import Estimate
    from dsconfig.facts import Facts
    from dsconfig.facts.launch_files import Launch
    from dsconfig.facts.run_log import RunLog
    from dsconfig.report.render import as_json as machine_form
    from dsconfig.runtimes.effective import Effective
    from dsconfig.source import Document


NO_SEQ_LEN = (
    "the run ran out of memory, but without --seq-len activations are not estimated, so that no "
    "change can be suggested: specify --seq-len"
)


def estimate(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="Config or launch file, or a directory with one (default: compare the usual "
            "configurations).",
            callback=options.file_in,
        ),
    ] = None,
    *,
    request: FactsRequest,
    overrides: options.Overrides = None,
    runtime: options.RuntimeName = None,
    deepspeed_version: options.DeepSpeedVersion = None,
    extra: EstimateOptions,
) -> None:
    """Estimate the memory per GPU, on the host and on NVMe, by component and config key.

    Exit code 1 if the run cannot start, or with --fail-if-oom if it does not fit. Errors are
    printed above the estimate; exit code 0 means that an estimate was made, not that it fits.
    """
    _reject_without_file(extra, file, overrides)
    facts, log = options.facts_from(request, file), None
    if extra.log is not None:
        log, facts, deepspeed_version = _read_log(extra.log, file, facts, deepspeed_version)
    facts = options.with_this_machine(facts)
    if extra.measured_here:
        facts = options.measured_here(facts)
    _reject_contradictions(extra, file, facts, log)
    if extra.compat is not None:
        estimate_limits.print_compat(facts, extra.compat, extra.output_format)
        return
    document, launch = None, None
    if file is not None:
        document, launch = launched.load(file, overrides, facts, extra.output_format)
    if document is None and log is not None:
        document = options.parsed(dict(log.config or {}), f"config in {extra.log}", overrides)
    if document is not None:
        facts = options.completed(facts, document)
        if log is not None:
            log_facts.note_other_stage(log.stage, str(extra.log), document.value, document.name)
    fact_notes.note_no_master_weights(facts)
    program = inference.target_program(
        runtime, deepspeed_version, document=document, source=file or "", facts=facts
    )
    facts = fact_notes.with_arguments_beside(program, file or "", facts)
    effective, errors, assumed = None, Report(()), list[str]()
    if document is not None:
        facts, assumed = assumed_facts.for_estimate(document, facts, program.runtime)
        for sentence in assumed:
            fact_notes.note(sentence)
        effective, errors = _checked(extra, document, facts, program, launch)
    if extra.fit:
        estimate_limits.print_limits(facts, effective, program, extra.output_format)
        raise typer.Exit(1 if despite_errors.prevents_start(errors) else 0)
    result = _result(extra, facts, program, effective, document, log)
    _finish(extra, result._replace(errors=errors, assumed=tuple(assumed), launch=launch))


def _checked(
    extra: EstimateOptions,
    document: "Document",
    facts: "Facts",
    program: inference.TargetProgram,
    launch: "Launch | None",
) -> "tuple[Effective, Report]":
    """Return the concrete config and the errors of the file, which are printed.

    Exits with code 1 if there is no concrete config.
    """
    if not extra.fit:
        try:
            with usage():
                workload.require_facts(facts)
        except UsageError as error:
            if launch is None:
                raise
            launched.stop(launch, str(error), extra.output_format)
    errors, effective, remarks = despite_errors.concrete(document, facts, program.runtime)
    for sentence in remarks:
        note(sentence)
    if effective is not None:
        fact_notes.note_ignored_flags(effective, document, program.runtime, facts)
        fact_notes.note_unintended_fp32(effective, document, program.runtime, facts)
        fact_notes.note_not_estimated(effective, facts)
    if effective is None and extra.output_format == "json":
        prepare.print_failure(errors, program.data)
    elif effective is None or (errors.diagnostics and extra.output_format != "json"):
        print_text(render("full", [FileReport(document.name, document.text, errors)]))
    if effective is None:
        print_text("no estimate: the config cannot be read or has no valid stage", err=True)
        raise typer.Exit(1)
    return effective, errors


def _finish(extra: EstimateOptions, result: Result) -> None:
    """Print and write the estimate. Exits with code 1 as the command does."""
    _write_plots(extra, result)
    if result.launch is not None and extra.output_format != "json":
        launched.print_read(result.launch)
    _show(result, extra.output_format)
    if result.needs_seq_len:
        note(NO_SEQ_LEN)
    if extra.output is not None and result.document is not None:
        _write_config(extra.output, result, result.document)
    is_oom = all(not_fitting(each, result.facts) for each in result.estimate.options)
    if despite_errors.prevents_start(result.errors) or (extra.fail_if_oom and is_oom):
        raise typer.Exit(1)
    if is_oom and result.effective is None:
        known = result.estimate.inputs
        can_recompute = known["sequence_length"] is not None and known["recompute"] == "none"
        first = "--recompute full (gradient checkpointing), " if can_recompute else ""
        note(f"try {first}{verdict.flags_to_try(result.facts)}")
    if is_oom and extra.output is None:
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


def _reject_without_file(
    extra: EstimateOptions, file: str | None, overrides: list[str] | None
) -> None:
    """Raise UsageError for options that change a config, if there is none."""
    if file is None and extra.output is not None:
        raise UsageError("--output requires FILE, the config to change")
    if file is None and extra.log is None and overrides:
        raise UsageError("--set requires FILE, the config to change")


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


def _write_plots(extra: EstimateOptions, result: Result) -> None:
    """Write the bar chart and the HTML page that were requested."""
    if extra.plot is not None:
        with usage():
            plots.write_plot(result.estimate, extra.plot)
    if extra.html is not None:
        summary = verdict.overall(result.estimate, result.facts, result.effective is not None)
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
        is_known = result.estimate.inputs["sequence_length"] is not None
        without = "" if is_known else " without activations; specify --seq-len"
        note(f"nothing written to {path}: the config fits{without}")


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
    if effective is None or document is None:
        return result
    if not result.needs_seq_len and (result.ran_out or not_fitting(result.option, facts)):
        limit = log_facts.smaller_device(facts, result.option, log) if log is not None else facts
        found = accepted_changes.cheapest_changes(effective, limit, program.runtime, document)
        result = result._replace(changes=found, host_fixes=_host_fixes(result))
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
    if effective is None or available is None or option.host.peak_bytes <= available:
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
        if result.launch is not None:
            data |= launch_request.facts_data(result.launch)
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
        print_json(data)
    elif result.effective is None:
        with screen.ending_with(verdict.overall(estimates, facts)):
            tables.print_table(estimates, facts, program)
    elif result.document is not None:
        show = partial(
            suggested_changes.change_lines,
            runtime=program.runtime,
            document=result.document,
            activations=estimates.inputs["sequence_length"] is not None,
        )
        lines = show(result.changes[:1])
        summary = verdict.overall(estimates, facts, is_config=True)
        with screen.ending_with(summary, *(lines if result.changes else ())):
            tables.print_depth(result)
        if log is not None and comparison is not None:
            run_logs.print_comparison(log, comparison)
            suggests = result.ran_out and not result.needs_seq_len
            if suggests and not not_fitting(result.option, facts):
                for line in show(result.changes):
                    print_text(line)


def _changes(result: Result) -> list[dict[str, Any]]:
    if result.document is None:
        return []
    return changes.change_data(result.changes, result.program.runtime, result.document)

"""Options of ``estimate``, and its result with what the output needs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from dsconfig.commands import options
from dsconfig.project.verdict import not_fitting
from dsconfig.report import Report

if TYPE_CHECKING:
    from dsconfig.cost.assumptions import Assumption
    from dsconfig.cost.estimate import Estimate, Option
    from dsconfig.cost.remedies import Change
    from dsconfig.facts import Facts
    from dsconfig.facts.launch_files import Launch
    from dsconfig.facts.run_log import RunLog
    from dsconfig.project import inference
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


class Result(NamedTuple):
    """An estimate with its inputs, the fixes and the decisive assumptions."""

    estimate: "Estimate"
    facts: "Facts"
    program: "inference.TargetProgram"
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

    launch: "Launch | None" = None
    """What the launch file says, if FILE is one."""

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
        """Whether changes cannot be suggested: the run failed because of unknown activations."""
        without = self.estimate.inputs["sequence_length"] is None
        return self.ran_out and without and not not_fitting(self.option, self.facts)

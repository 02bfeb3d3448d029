"""Terminal output for the log of a run, and its comparison with an estimate."""

from typing import TYPE_CHECKING

import typer

from dsconfig.commands.text_table import TextTable, emphasised, paragraph
from dsconfig.cost.log_comparison import Comparison, Fitted
from dsconfig.report.render.terminal import one_line
from dsconfig.report.sizes import both, gib, in_gib

if TYPE_CHECKING:
    from dsconfig.facts.run_log import RunLog


LONGEST = 60
"""Characters of a caption."""


def print_comparison(log: "RunLog", comparison: Comparison) -> None:
    """Print measured and estimated figures, fitted constants and the failure."""
    typer.echo(f"\n{paragraph(f'log: {_listed(log.found)}')}\n")
    if comparison.figures:
        table = TextTable("figure", ">measured", ">estimated", ">error")
        for figure in comparison.figures:
            error = f"{figure.error:+.0%}" if figure.measured else ""
            values = (figure.measured, figure.predicted)
            in_seconds = figure.unit == "seconds"
            cells = [f"{value:.3g} s" if in_seconds else gib(value, 2) for value in values]
            table.add_row(figure.what, *cells, error)
        typer.echo(f"{table}\n")
    else:
        typer.echo(f"{paragraph('The log has no readings to compare with the estimate.')}\n")
    for line in map(_sentence, comparison.fitted):
        typer.echo(paragraph(line))
    if comparison.is_foreign:
        typer.echo(
            paragraph(
                "Memory after creation (the model states) differs from the estimate: the log is of "
                "another model, number of ranks or config. It is not used for calibration."
            )
        )
    if comparison.failed:
        typer.echo(emphasised(paragraph(comparison.failed)))


def _sentence(fitted: Fitted) -> str:
    if fitted.unit == "bytes":
        return f"{fitted.name}: {both(fitted.value)} measured, {both(fitted.assumed)} assumed."
    return (
        f"{fitted.name}: {fitted.value:.2f} {fitted.unit} measured, {fitted.assumed:.2f} assumed."
    )


def print_log(log: "RunLog") -> None:
    """Print the content of a log."""
    typer.echo(paragraph(f"log: {_listed(log.found)}"))
    facts = {
        "DeepSpeed": log.release,
        "ranks": log.world_size,
        "samples/s": log.samples_per_second and f"{log.samples_per_second:.4g}",
        "GPU": log.device,
        "GPU memory": log.device_memory and both(log.device_memory),
        **log.releases,
        "nvidia-smi": None if log.visible is None else both(log.visible),
    }
    for name, value in facts.items():
        if value is not None:
            typer.echo(f"  {name}: {value}")
    if log.readings:
        table = TextTable("reading (GiB)", "phase", ">allocated", ">peak", ">reserved", "")
        for reading in log.readings:
            sizes = (reading.allocated, reading.peak, reading.reserved)
            cells = [in_gib(size) for size in sizes]
            table.add_row(one_line(reading.caption)[:LONGEST], reading.phase or "?", *cells, "")
        typer.echo(f"\n{table}")
    failure = log.out_of_memory
    if failure is None:
        return
    when = f" in {failure.phase}" if failure.phase else ", in an unknown phase"
    parts = {"allocated": failure.allocated, "capacity": failure.capacity}
    sizes = "".join(f"; {name} {gib(size, 2)}" for name, size in parts.items() if size)
    typer.echo(emphasised(f"\nOut of memory{when}: {gib(failure.tried, 2)} requested{sizes}."))
    typer.echo(
        paragraph("Run `dsconfig estimate FILE ... --log LOG` to compare it and find fixes.")
    )


def _listed(kinds: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))

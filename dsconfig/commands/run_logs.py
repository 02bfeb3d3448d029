"""The log of a run on a terminal: what it printed, beside what was expected of it."""

from typing import TYPE_CHECKING

import typer

from dsconfig.commands.text_table import TextTable, emphasised, paragraph
from dsconfig.cost.log_comparison import Comparison, Fitted
from dsconfig.report.render.terminal import one_line
from dsconfig.report.sizes import both, gib, in_gib

if TYPE_CHECKING:
    from dsconfig.facts.run_log import RunLog


LONGEST = 60
"""Characters of a caption that are shown."""


def print_comparison(log: "RunLog", comparison: Comparison) -> None:
    """Each figure of the run beside its prediction, what follows for this machine, the failure."""
    typer.echo(f"\n{paragraph(f'The log has {_listed(log.found)}.')}\n")
    if comparison.figures:
        table = TextTable("the run's own figures", ">measured", ">expected", ">off")
        for figure in comparison.figures:
            off = f"{figure.error:+.0%}" if figure.measured else ""
            values = (figure.measured, figure.predicted)
            in_seconds = figure.unit == "seconds"
            cells = [f"{each:.3g} s" if in_seconds else gib(each, 2) for each in values]
            table.add_row(figure.what, *cells, off)
        typer.echo(f"{table}\n")
    else:
        typer.echo(f"{paragraph('None of it has a counterpart in the estimate.')}\n")
    for line in map(_sentence, comparison.fitted):
        typer.echo(paragraph(line))
    if comparison.is_foreign:
        typer.echo(
            paragraph(
                "After creation only the model's states are there, and they differ: this log is "
                "of another model, number of ranks or config. Nothing is fitted to it."
            )
        )
    if comparison.failed:
        typer.echo(emphasised(paragraph(comparison.failed)))


def _sentence(fitted: Fitted) -> str:
    if fitted.unit == "bytes":
        return f"{fitted.name}: {both(fitted.value)} here, {both(fitted.assumed)} assumed."
    return f"{fitted.name}: {fitted.value:.2f} {fitted.unit} here, {fitted.assumed:.2f} assumed."


def print_log(log: "RunLog") -> None:
    """What a log tells by itself."""
    typer.echo(paragraph(f"The log has {_listed(log.found)}."))
    known = {
        "DeepSpeed": log.release,
        "ranks": log.world_size,
        "samples/s": log.samples_per_second and f"{log.samples_per_second:.4g}",
        "nvidia-smi": None if log.visible is None else both(log.visible),
    }
    for name, value in known.items():
        if value is not None:
            typer.echo(f"  {name}: {value}")
    if log.readings:
        table = TextTable("caption", "phase", ">allocated", ">peak", ">reserved", "GiB")
        for each in log.readings:
            sizes = (each.allocated, each.peak, each.reserved)
            cells = [in_gib(size) for size in sizes]
            table.add_row(one_line(each.caption)[:LONGEST], each.phase or "?", *cells, "")
        typer.echo(f"\n{table}")
    lack = log.out_of_memory
    if lack is None:
        return
    when = f" in {lack.phase}" if lack.phase else ", in a phase that no frame tells"
    parts = {"allocated": lack.allocated, "the card has": lack.capacity}
    sizes = "".join(f"; {name} {gib(size, 2)}" for name, size in parts.items() if size)
    typer.echo(emphasised(f"\nOut of memory{when}: {gib(lack.tried, 2)} more{sizes}."))
    typer.echo(
        paragraph(
            "`dsconfig estimate FILE ... --log LOG` says what was expected and what would fit."
        )
    )


def _listed(found: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(found[:-1]), found[-1])))

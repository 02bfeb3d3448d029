"""Terminal output for the log of a run, and its comparison with an estimate."""

from typing import TYPE_CHECKING

from dsconfig.commands.printing import print_text
from dsconfig.commands.text_table import TextTable, emphasised, paragraph
from dsconfig.cost.log_comparison import Comparison, Fitted
from dsconfig.failures.text import shortened
from dsconfig.report.sizes import both, counted, gib, in_gib
from dsconfig.report.writers import one_line

if TYPE_CHECKING:
    from dsconfig.facts.run_log import RunLog
    from dsconfig.failures.diagnosis import Diagnosis, Failure


LONGEST = 60
"""Characters of a caption."""


def _shortened(text: str) -> str:
    return shortened(one_line(text), LONGEST)


def print_comparison(log: "RunLog", comparison: Comparison) -> None:
    """Print measured and estimated figures, fitted constants and the failure."""
    print_text(f"\n{paragraph(f'log: {_listed(log.found)}')}\n")
    if comparison.figures:
        table = TextTable("figure", ">measured", ">estimated", ">error")
        for figure in comparison.figures:
            error = f"{figure.error:+.0%}" if figure.measured else ""
            values = (figure.measured, figure.predicted)
            in_seconds = figure.unit == "seconds"
            cells = [f"{value:.3g} s" if in_seconds else gib(value, 2) for value in values]
            table.add_row(figure.what, *cells, error)
        print_text(f"{table}\n")
    else:
        print_text(f"{paragraph('The log has no readings to compare with the estimate.')}\n")
    for line in map(_sentence, comparison.fitted):
        print_text(paragraph(line))
    if comparison.is_foreign:
        print_text(
            paragraph(
                "Memory after creation (the model states) differs from the estimate: the log is of "
                "another model, number of ranks or config. It is not used for calibration."
            )
        )
    if comparison.failed:
        print_text(emphasised(paragraph(comparison.failed)))


def _sentence(fitted: Fitted) -> str:
    if fitted.unit == "bytes":
        return f"{fitted.name}: {both(fitted.value)} measured, {both(fitted.assumed)} assumed."
    return (
        f"{fitted.name}: {fitted.value:.2f} {fitted.unit} measured, {fitted.assumed:.2f} assumed."
    )


def print_diagnosis(diagnosis: "Diagnosis") -> None:
    """Print why a run failed, and the facts and memory readings of its logs."""
    _print_facts(diagnosis)
    if diagnosis.log.readings:
        print_text(f"\n{_readings(diagnosis.log)}")
    for place, failure in enumerate(diagnosis.failures):
        _print_failure("First failure" if place == 0 else "Another failure", failure)
    if diagnosis.consequences:
        table = TextTable("consequence", "place", "line")
        for failure in diagnosis.consequences:
            table.add_row(failure.signature, _place(failure), _shortened(failure.text))
        print_text(f"\n{table}")
    if not diagnosis.failures:
        print_text(emphasised(f"\n{paragraph(NO_FAILURE)}"))
        print_text(paragraph(TO_COLLECT))


NO_FAILURE = "No known failure found."
TO_COLLECT = (
    "If the run failed, pass the logs of all ranks (torchrun --tee 3 --log-dir logs, deepspeed "
    "--enable_each_rank_log logs). If it hangs, pass the output of `py-spy dump --pid PID` of each "
    "rank, or the dumps of torch's flight recorder (TORCH_FR_BUFFER_SIZE=2000)."
)


def _print_facts(diagnosis: "Diagnosis") -> None:
    log, files = diagnosis.log, diagnosis.facts["files"]
    lines = sum(file["lines"] for file in files)
    states = diagnosis.facts["waiting"]
    if states:
        print_text(paragraph(f"dumps and stacks: {counted(len(states), 'rank')}"))
    found = diagnosis.facts["recognized"]
    contents = f"; found: {', '.join(found)}" if found else ""
    print_text(paragraph(f"log: {counted(len(files), 'file')}, {counted(lines, 'line')}{contents}"))
    facts = {
        "program": diagnosis.facts["program"],
        "ranks": log.world_size,
        "samples/s": log.samples_per_second and f"{log.samples_per_second:.4g}",
        "GPU": log.device,
        "GPU memory": log.device_memory and both(log.device_memory),
        **diagnosis.facts["releases"],
        "nvidia-smi": None if log.visible is None else both(log.visible),
    }
    for name, value in facts.items():
        if value is not None:
            print_text(f"  {name}: {value}")
    for name in diagnosis.facts["recovered"]:
        print_text(f"  the run continued after: {name}")


def _readings(log: "RunLog") -> TextTable:
    table = TextTable("reading (GiB)", "phase", ">allocated", ">peak", ">reserved", "")
    for reading in log.readings:
        cells = [in_gib(size) for size in (reading.allocated, reading.peak, reading.reserved)]
        table.add_row(_shortened(reading.caption), reading.phase or "?", *cells, "")
    return table


def _print_failure(title: str, failure: "Failure") -> None:
    others = [str(rank) for rank in failure.ranks if rank != failure.rank]
    also = f" (also rank {', '.join(others)})" if others else ""
    print_text(emphasised(f"\n{title}: {failure.signature}, {_place(failure)}{also}"))
    for label, text in (
        ("", one_line(failure.text)),
        ("Cause: ", f"{failure.cause}."),
        ("Fix: ", failure.remedy),
    ):
        print_text(paragraph(f"{label}{text}", first="  ", indent="    "))
    if failure.threads:
        print_text("  Threads:")
    for url in failure.threads:
        print_text(f"    {url}")


def _place(failure: "Failure") -> str:
    rank = "" if failure.rank is None else f"rank {failure.rank}, "
    return f"{rank}{one_line(failure.file)}:{failure.line}"


def _listed(kinds: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))

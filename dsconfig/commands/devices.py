"""``dsconfig devices [WORDS]``: the cards that are known by name, and those of this machine."""

import json
from typing import Annotated

import typer

from dsconfig.commands import options
from dsconfig.commands.errors import UsageError
from dsconfig.commands.text_table import TextTable
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report.sizes import gib, in_gib

with lazy_imports():
    from dsconfig.facts import catalogue, machine


def devices(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORDS]", help="Parts of a name that have to be in it."),
    ] = None,
    output_format: options.FullOrJson = "full",
) -> None:
    """List the cards of the catalogue, for --device. Case and dashes do not matter.

    Any other card: --device-memory 24GiB.

    Examples:
      dsconfig devices a100
      dsconfig devices 80gb --output-format json
    """
    found = [each for each in catalogue.gpus() if catalogue.mentions(words or (), each["name"])]
    here = machine.cards_here()
    if output_format == "json":
        own = [{"name": name, "memory_bytes": memory} for name, memory in here]
        data = {"format_version": "1.0", "devices": found, "this_machine": own}
        typer.echo(json.dumps(data, indent=2))
        return
    if not found:
        raise UsageError(f"no card has {' '.join(words or ())} in its name: dsconfig devices")
    table = TextTable("name", ">usable GiB", ">TFLOPS, 16-bit", ">memory GB/s", "bf16")
    for each in found:
        rate = each["tflops_bf16_dense"] or each["tflops_fp16_dense"]
        table.add_row(
            each["name"],
            in_gib(each["memory_bytes_usable"], 1),
            str(rate or "-"),
            str(each["memory_gb_s"]),
            "yes" if each["bf16"] else "no",
        )
    typer.echo(str(table))
    for name, memory in here:
        typer.echo(f"this machine: {name}, {gib(memory)}")

"""``dsconfig devices [WORDS]``: known GPUs, and those of this machine."""

from typing import Annotated

import typer

from dsconfig.commands import options
from dsconfig.commands.printing import print_json, print_text
from dsconfig.commands.text_table import TextTable
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError
from dsconfig.report.sizes import gib, in_gib

with lazy_imports():
    from dsconfig.facts import catalogue, machine


def devices(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORDS]", help="Words that the name must contain."),
    ] = None,
    output_format: options.FullOrJson = "full",
) -> None:
    """List known GPUs for --device.

    Case and dashes are ignored. For other GPUs use --device-memory, e.g. 24GiB.

    Examples:
      dsconfig devices a100
      dsconfig devices 80gb --output-format json
    """
    gpus = machine.matching_gpus(" ".join(words)) if words else list(catalogue.gpus())
    if not gpus:
        gpus = [gpu for gpu in catalogue.gpus() if catalogue.mentions(words or (), gpu["name"])]
    local = machine.local_gpus()
    if [word.lower() for word in words or ()] == ["cpu"] and output_format != "json":
        memory = machine.host_memory_bytes()
        print_text(f"cpu: this machine{f', {gib(memory)}' if memory else ''}, bf16 and fp16")
        return
    if output_format == "json":
        own = [{"name": name, "memory_bytes": memory} for name, memory in local]
        data = {"format_version": "1.0", "devices": gpus, "this_machine": own}
        print_json(data)
        return
    if not gpus:
        raise UsageError(
            f"no known GPU matches {' '.join(words or ())}; list all with dsconfig devices"
        )
    table = TextTable("name", ">usable GiB", ">16-bit TFLOPS", ">memory GB/s", "bf16")
    for gpu in gpus:
        rate = gpu["tflops_bf16_dense"] or gpu["tflops_fp16_dense"]
        table.add_row(
            gpu["name"],
            in_gib(gpu["memory_bytes_usable"], 1),
            str(rate or "-"),
            f"{gpu['memory_gb_s']:,}" if gpu["memory_gb_s"] else "-",
            "yes" if gpu["bf16"] else "no",
        )
    print_text(str(table))
    for name, memory in local:
        print_text(f"this machine: {name}, {gib(memory)}")

"""``dsconfig models [WORDS]``: the models that are known by name."""

import json
from typing import Annotated

import typer

from dsconfig.commands import options
from dsconfig.commands.errors import UsageError
from dsconfig.commands.text_table import TextTable
from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.facts import catalogue


def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORDS]", help="Parts of a name or id that have to be in it."),
    ] = None,
    output_format: options.FullOrJson = "full",
) -> None:
    """List the models of the catalogue, for --model. Case and dashes do not matter.

    An id that lies in Hugging Face's cache, or a config.json, is taken as it is.

    Examples:
      dsconfig models llama 8b
      dsconfig models qwen --output-format json
    """
    found = [each for each in catalogue.models() if catalogue.mentions(words or (), *names(each))]
    if output_format == "json":
        typer.echo(json.dumps({"format_version": "1.0", "models": found}, indent=2))
        return
    if not found:
        raise UsageError(f"no model has {' '.join(words or ())} in its name: dsconfig models")
    table = TextTable("name", ">parameters", ">layers", ">width", ">context", "also known as")
    for each in found:
        also = ", ".join(name for name in names(each) if name != each["name"])
        sizes = (f"{each['params'] / 1e9:.2f}e9", str(each["layers"]), str(each["hidden_size"]))
        table.add_row(each["name"], *sizes, str(each["max_positions"] or "-"), also)
    typer.echo(str(table))


def names(entry: "catalogue.Entry") -> tuple[str, ...]:
    """All that a model is called."""
    return (entry["name"], entry["hf_id"], *entry.get("aliases", ()))

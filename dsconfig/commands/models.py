"""``dsconfig models [WORDS]``: known models."""

import json
from typing import Annotated

import typer

from dsconfig.commands import options
from dsconfig.commands.text_table import TextTable
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError

with lazy_imports():
    from dsconfig.facts import catalogue


def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORDS]", help="Words that the name or id must contain."),
    ] = None,
    output_format: options.FullOrJson = "full",
) -> None:
    """List known models for --model.

    Case and dashes are ignored. --model also accepts Hugging Face ids in the local cache and
    config.json files.

    Examples:
      dsconfig models llama 8b
      dsconfig models qwen --output-format json
    """
    found = [
        model for model in catalogue.models() if catalogue.mentions(words or (), *names(model))
    ]
    if output_format == "json":
        typer.echo(json.dumps({"format_version": "1.0", "models": found}, indent=2))
        return
    if not found:
        raise UsageError(
            f"no known model matches {' '.join(words or ())}; list all with dsconfig models"
        )
    table = TextTable("name", ">parameters", ">layers", ">hidden size", ">context", "also known as")
    for model in found:
        also = ", ".join(name for name in names(model) if name != model["name"])
        sizes = (f"{model['params'] / 1e9:.2f}e9", str(model["layers"]), str(model["hidden_size"]))
        table.add_row(model["name"], *sizes, str(model["max_positions"] or "-"), also)
    typer.echo(str(table))


def names(entry: "catalogue.Entry") -> tuple[str, ...]:
    """Return all names of a model."""
    return (entry["name"], entry["hf_id"], *entry.get("aliases", ()))

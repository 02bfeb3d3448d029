"""``dsconfig models [WORDS]``: known models."""

from typing import Annotated

import typer

from dsconfig.commands import options
from dsconfig.commands.printing import print_json, print_text
from dsconfig.commands.text_table import TextTable, terminal_width
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError

with lazy_imports():
    from dsconfig.facts import catalogue

WIDE = 110
"""Columns from which all sizes of a model are shown."""


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
    models = [
        model for model in catalogue.models() if catalogue.mentions(words or (), *names(model))
    ]
    if output_format == "json":
        print_json({"format_version": "1.0", "models": models})
        return
    if not models:
        raise UsageError(
            f"no known model matches {' '.join(words or ())}; list all with dsconfig models"
        )
    print_text(str(table(models)))


def table(models: "list[catalogue.Entry]") -> TextTable:
    """Return one row per model; a narrow terminal has only room for its size and ids."""
    sizes = {"layers": "layers", "hidden size": "hidden_size", "context": "max_positions"}
    if terminal_width() < WIDE:
        sizes = {}
    rows = TextTable("name", ">parameters", *(f">{size}" for size in sizes), "also known as")
    for model in models:
        also = ", ".join(name for name in names(model) if name != model["name"])
        shown = (str(model[key] or "-") for key in sizes.values())
        rows.add_row(model["name"], f"{model['params'] / 1e9:.2f}e9", *shown, also)
    return rows


def names(entry: "catalogue.Entry") -> tuple[str, ...]:
    """Return all names of a model."""
    return (entry["name"], entry["hf_id"], *entry.get("aliases", ()))

"""``dsconfig explain KEY|RULE|FILE``: explain a key, a rule, or every key of a file."""

import json
import sys
from typing import Annotated

import typer

from dsconfig.commands import completion, options
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import usage

with lazy_imports():
    from dsconfig.commands import markdown, text_table
    from dsconfig.reference import explanation


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KEY|RULE|FILE",
            help="Key, rule code or name, or config file: overlap_comm, DSC401, ds.json.",
            autocompletion=completion.keys_and_rules,
        ),
    ],
    output_format: options.FullOrJson = "full",
) -> None:
    """Explain a config key, a rule, or every key of a file.

    For a key: type, defaults, memory, how programs handle "auto", and DeepSpeed's documentation.
    """
    with usage():
        if output_format == "json":
            data = {"format_version": "1.0", **explanation.data_of(what)}
            typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
            return
        text = explanation.text_of(what)
    if text.startswith("# ") and sys.stdout.isatty():
        markdown.show(text)
    else:
        typer.echo(text_table.fitted(text))

"""Plain-text help pages: one definition list per panel, without rich's boxes or import time."""

import re
from typing import Any

from typer.core import TyperCommand

PANELS = ("Arguments", "Options")
"""Panels of parameters that do not specify one, first on the page."""
WIDEST_NAMES = 28
"""Columns of the left side; longer names take a line of their own."""
TYPES = {"int": "N", "int range": "N", "float": "X", "float range": "X", "path": "PATH"}
"""Placeholders of options without a metavar, by typer's name of the type."""


class PlainCommand(TyperCommand):
    """A command whose help is plain text."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{**settings, "rich_markup_mode": None})

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the placeholders of the usage line."""
        arguments = [
            parameter
            for parameter in self.get_params(ctx)
            if parameter.param_type_name == "argument"
        ]
        return ["[OPTIONS]", *map(_argument_name, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters, grouped by panel."""
        write_parameters(self, ctx, formatter)


def write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Write a definition list of the parameters for each panel of a command."""
    panels: dict[str, list[tuple[str, str]]] = {name: [] for name in PANELS}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None:
            continue
        names, text = record
        if param.param_type_name == "argument":
            panels["Arguments"].append((_argument_name(param), text.replace("  [required]", "")))
        else:
            names = re.sub(r"<([^>]*)>", lambda match: TYPES.get(match[1], match[1]), names)
            # click's own `--help`, which older typer releases leave in place, names no panel.
            panel = getattr(param, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append((names, text))
    for name, records in panels.items():
        if records:
            with formatter.section(name):
                formatter.write_dl(records, col_max=WIDEST_NAMES)


def _argument_name(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required or "[" in name else f"[{name}]"

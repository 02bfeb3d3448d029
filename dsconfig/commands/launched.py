"""The file that a person launches: its facts and ds_config for a command, and what was read."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from dsconfig.commands import options
from dsconfig.commands.printing import print_json, print_text
from dsconfig.lazy_imports import lazy_imports

with lazy_imports():
    from dsconfig.commands import text_table
    from dsconfig.cost import rendering
    from dsconfig.facts import launch_request, launches
    from dsconfig.facts.launch_facts import DEFAULT

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.facts.launch_files import Launch
    from dsconfig.source import Document

MOST_KEYS = 12
"""Keys that are listed as not understood."""


def load(
    file: str, overrides: list[str] | None, facts: "Facts", output_format: str
) -> "tuple[Document, Launch | None]":
    """Return the ds_config of a file, and its launch if it is one.

    Exits with code 1 if the launch uses none.
    """
    opened = options.opened(file)
    launch = launches.launch_of(opened, facts)
    if launch is not None and launches.without_config(opened):
        reason = opened.diagnostics[0].message if opened.is_unreadable else launch.why_no_config
        stop(launch, reason, output_format)
    return options.prepared(opened, file, overrides, facts), launch


def stop(launch: "Launch", reason: str, output_format: str) -> NoReturn:
    """Print what was read and why there is no answer; exit with code 1."""
    if output_format == "json":
        error = {"severity": "error", "message": reason}
        data = {"format_version": rendering.FORMAT_VERSION, **launch_request.facts_data(launch)}
        print_json({**data, "options": [], "diagnostics": [error]})
    else:
        print_read(launch)
        print_text(f"no estimate: {reason}", err=True)
    raise typer.Exit(1)


def print_read(launch: "Launch") -> None:
    """Print one paragraph of what was read, and the keys that were not understood."""
    print_text(text_table.paragraph(" ".join(_sentences(launch))))
    unknown = launch.not_understood
    if unknown:
        shown = [f"{each.key} ({each.source})" for each in unknown[:MOST_KEYS]]
        more = [f"and {len(unknown) - MOST_KEYS} more"] if len(unknown) > MOST_KEYS else []
        print_text(text_table.paragraph(f"Not understood: {', '.join([*shown, *more])}"))
    print_text("")


def _sentences(launch: "Launch") -> Iterator[str]:
    """Yield the program, its facts, and which of them are defaults."""
    newest = "" if launch.release_is_stated else " (newest known; override with --with)"
    yield f"{launch.file}: {launch.program.title} {launch.release}{newest}."
    shown = {
        name: text
        for name, fact in launch.facts.items()
        if (text := _shown(name, fact.value)) is not None
    }
    yield f"{'; '.join(shown.values())}."
    assumed = [
        name.replace("_", " ") for name in shown if launch.facts[name].origin.kind == DEFAULT
    ]
    if assumed:
        yield f"Defaults: {', '.join(assumed)}."


_UNDIVIDED = ("nodes", "sequence_parallel", "tensor_parallel", "lora_dropout")
"""Facts that are not shown if their value is 0 or 1."""


def _shown(name: str, value: Any) -> str | None:
    """Return the text of a fact; None if it is not shown."""
    label = name.replace("_", " ")
    if value is True:
        return label
    if value is False:
        return None if name in ("liger", "packing", "engine_sleeps") else f"no {label}"
    if name in _UNDIVIDED and value in (0, 1):
        return None
    if name == "offload":
        moved = [f"{kind} to {device}" for kind, device in value.items() if device != "none"]
        return f"offload of {' and '.join(moved)}" if moved else None
    return f"{label} {value}"

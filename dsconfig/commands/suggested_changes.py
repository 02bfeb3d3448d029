"""Changes that make a config fit: as text with a diff, and written to a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsconfig.commands.notes import note
from dsconfig.commands.printing import print_text
from dsconfig.commands.text_table import paragraph, uses_color
from dsconfig.commands.writing import write
from dsconfig.project import changes as changes_of
from dsconfig.report.sizes import size
from dsconfig.runtimes.base import format_instructions

if TYPE_CHECKING:
    from dsconfig.cost.remedies import Change
    from dsconfig.runtimes.base import Runtime
    from dsconfig.source import Document

NOTHING_SMALLER = "No smaller configuration is known: use more or larger GPUs, or a smaller model."


def change_lines(
    changes: "Sequence[Change]",
    runtime: "Runtime",
    document: "Document",
    *,
    activations: bool = True,
) -> list[str]:
    """Return each change with its memory and step time, what to set, and the diff of the file.

    ``activations``: whether the memory includes them.
    """
    if not changes:
        return [NOTHING_SMALLER]
    without = "" if activations else " without activations"
    fitting = f"To fit{without}:"
    lines = [
        fitting
        if changes[0].fits
        else f"No change or pair of changes makes it fit{without}. Closest:"
    ]
    for change in changes:
        memory = size(change.option.device.needed_bytes)
        effect = f"{change.what} ({memory}, {change.slowdown:.2f}x step time)"
        elsewhere = changes_of.set_elsewhere(change, runtime, document)
        detail = f": {format_instructions(elsewhere)}" if elsewhere else ""
        lines.append(paragraph(f"{effect}{detail}", indent="    ", first="  "))
        lines += [f"      {_colored(line)}" for line in changes_of.diff(change, runtime, document)]
    return lines


def _colored(line: str) -> str:
    color = {"-": "red", "+": "green"}.get(line[:1])
    return typer.style(line, fg=color) if color and uses_color() else line


def write_changed(
    path: Path, changes: "Sequence[Change]", runtime: "Runtime", document: "Document"
) -> None:
    """Write the config with the first change that the file alone expresses, else in part.

    Reports on stderr what is set elsewhere. Exits with code 1, and writes nothing, if no change
    to the file makes the config fit.
    """
    elsewhere = {
        change.what: changes_of.set_elsewhere(change, runtime, document)
        for change in changes
        if change.fits
    }
    edited = [
        change for change in changes if change.fits and changes_of.diff(change, runtime, document)
    ]
    change = next((change for change in edited if not elsewhere[change.what]), None)
    change = change or next(iter(edited), None)
    if change is not None:
        write(path, changes_of.changed(change, runtime, document).text or "")
        note(f"wrote {path}: {change.what}")
        if also := elsewhere.pop(change.what):
            note(f"also set {format_instructions(also)}")
    for what, steps in elsewhere.items():
        if steps:
            note(f"other change that fits (not written): {what}: {format_instructions(steps)}")
    if change is None:
        reason = "no change to the file" if elsewhere else "no change"
        print_text(f"nothing written to {path}: {reason} makes the config fit", err=True)
        raise typer.Exit(1)

"""Changes that make a config fit: as text with a diff, as JSON, and written to a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dsconfig.commands.notes import note
from dsconfig.commands.text_table import paragraph, uses_color
from dsconfig.commands.writing import write
from dsconfig.lazy_imports import lazy_imports
from dsconfig.report.sizes import size
from dsconfig.runtimes.base import CONFIG, Instruction, format_instructions
from dsconfig.schema import find
from dsconfig.source.pointer import join, lookup

with lazy_imports():
    from dsconfig.source import rewrite

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
    lines = [fitting if changes[0].fits else f"No single change makes it fit{without}. Closest:"]
    for change in changes:
        memory = size(change.option.device.needed_bytes)
        effect = f"{change.what} ({memory}, {change.slowdown:.2f}x step time)"
        elsewhere = _set_elsewhere(change, runtime, document)
        detail = f": {format_instructions(elsewhere)}" if elsewhere else ""
        lines.append(paragraph(f"{effect}{detail}", indent="    ", first="  "))
        lines += [f"      {_colored(line)}" for line in _diff(change, runtime, document)]
    return lines


def _colored(line: str) -> str:
    color = {"-": "red", "+": "green"}.get(line[:1])
    return typer.style(line, fg=color) if color and uses_color() else line


def change_data(
    changes: "Sequence[Change]", runtime: "Runtime", document: "Document"
) -> list[dict[str, Any]]:
    """Return the changes in JSON form."""
    return [
        {
            "what": change.what,
            "fits": change.fits,
            "visible_bytes": change.option.device.visible_bytes,
            "needed_bytes": change.option.device.needed_bytes,
            "slowdown": change.slowdown,
            "edits": change.edits,
            "steps": [
                step._asdict() for step in runtime.instructions(change.edits, document.value)
            ],
            "diff": _diff(change, runtime, document),
        }
        for change in changes
    ]


def write_changed(
    path: Path, changes: "Sequence[Change]", runtime: "Runtime", document: "Document"
) -> None:
    """Write the config with the first change that the file alone expresses, else in part.

    Reports on stderr what is set elsewhere. Exits with code 1, and writes nothing, if no change
    to the file makes the config fit.
    """
    elsewhere = {
        change.what: _set_elsewhere(change, runtime, document) for change in changes if change.fits
    }
    edited = [change for change in changes if change.fits and _diff(change, runtime, document)]
    change = next((change for change in edited if not elsewhere[change.what]), None)
    change = change or next(iter(edited), None)
    if change is not None:
        write(path, changed(change, runtime, document).text or "")
        note(f"wrote {path}: {change.what}")
        if also := elsewhere.pop(change.what):
            note(f"also set {format_instructions(also)}")
    for what, steps in elsewhere.items():
        if steps:
            note(f"other change that fits (not written): {what}: {format_instructions(steps)}")
    if change is None:
        reason = "no change to the file" if elsewhere else "no change"
        typer.echo(f"nothing written to {path}: {reason} makes the config fit", err=True)
        raise typer.Exit(1)


def changed(change: "Change", runtime: "Runtime", document: "Document") -> "Document":
    """Return the config with the part of a change that belongs in it."""
    edits = runtime.file_edits(change.edits, document.value)
    edited = _without_former_names(rewrite.with_values(document, edits), edits)
    return _without_keys_of(lookup(document.value, STAGE, 0), edited)


STAGE = "/zero_optimization/stage"


def _without_keys_of(former: object, document: "Document") -> "Document":
    """Delete keys that have an effect at the former ZeRO stage, but not at the one now (DSC402)."""
    stage = lookup(document.value, STAGE, former)
    for key in list(document.value.get("zero_optimization", {})):
        known = find(("zero_optimization", key))
        stages = known.declared.stages if known else ()
        if former in stages and stage not in stages:
            document = rewrite.without(document, f"/zero_optimization{join(key)}")
    return document


_FORMER = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_params"}


def _without_former_names(document: "Document", edits: Mapping[str, Any]) -> "Document":
    """Delete deprecated keys whose replacement is edited: DeepSpeed rejects both together."""
    for name, former in _FORMER.items():
        pointer = f"/zero_optimization/{former}"
        if any(path.startswith(f"/zero_optimization/{name}") for path in edits):
            document = rewrite.without(document, pointer)
    return document


def _diff(change: "Change", runtime: "Runtime", document: "Document") -> list[str]:
    before = rewrite.as_editable(document)
    return rewrite.changed_lines(before, changed(change, runtime, document))


def _set_elsewhere(change: "Change", runtime: "Runtime", document: "Document") -> list[Instruction]:
    steps = runtime.instructions(change.edits, document.value)
    return [step for step in steps if step.where != CONFIG]

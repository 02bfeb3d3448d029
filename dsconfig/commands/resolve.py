"""``dsconfig resolve FILE``: replace each "auto" and trace each value to its source."""

import json
import shutil
from collections.abc import Iterator
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsconfig import examination
from dsconfig.commands import options
from dsconfig.commands.notes import note
from dsconfig.commands.printing import print_json, print_text
from dsconfig.commands.text_table import paragraph
from dsconfig.commands.writing import write
from dsconfig.facts.request import FactsRequest
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import inference
from dsconfig.project.errors import UsageError, usage
from dsconfig.report import FileReport, Report, Severity
from dsconfig.report.writers import one_line
from dsconfig.runtimes.base import AUTO
from dsconfig.schema.paths import STEPS_PER_PRINT, KeyPath
from dsconfig.source.pointer import ABSENT, dotted, is_block, is_list, lookup, value_at, walk

with lazy_imports():
    from dsconfig.commands import fact_notes, ledger_table
    from dsconfig.reference import keys as key_reference
    from dsconfig.report import render
    from dsconfig.report.render import as_json as machine_form
    from dsconfig.resolver.resolution import finite, ledger_data

if TYPE_CHECKING:
    from dsconfig.resolver.resolution import Resolution
    from dsconfig.source import Document

ENGINE = "dsengine"
MOST_NAMED = 3
"""Keys of the same name listed in a message."""
PIPED_WIDTH = 120
"""Columns when stdout is not a terminal; COLUMNS overrides it."""


def resolve(
    file: options.ConfigFile,
    *,
    overrides: options.Overrides = None,
    runtime: options.RuntimeName = None,
    deepspeed_version: options.DeepSpeedVersion = None,
    explain: Annotated[
        str | None, typer.Option(metavar="KEY", help="Print where the value of one key comes from.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the resolved config as JSON (- for stdout).",
        ),
    ] = None,
    output_format: options.FullOrJson = "full",
    request: FactsRequest,
) -> None:
    """Replace each "auto" with a value and explain it, as the target program does.

    Exit code 1 if a value is missing or contradictory.
    """
    facts = options.facts_from(request, file)
    document = options.load(file, overrides, facts)
    facts = options.completed(facts, document)
    target = inference.target_program(
        runtime, deepspeed_version, document=document, source=file, facts=facts
    )
    facts = fact_notes.with_arguments_beside(target, file, facts)
    program = target.runtime
    facts = fact_notes.without_accumulation(document, facts, program)
    with usage():
        result = examination.resolution(document, facts, program)
    if result.effective is not None:
        fact_notes.note_ignored_flags(result.effective, document, program, facts)
        fact_notes.note_unintended_fp32(result.effective, document, program, facts)
    pointer = None if explain is None else pointer_of(result, explain)
    is_written = output is None or _write(output, result, document)
    if output is not None and str(output) == "-":
        show_findings(result, document, to_stderr=True)
        if is_written and result.effective is not None:
            print_text(as_json(result.config))
    elif output_format == "json":
        print_json({**data(result, pointer), **target.data}, default=str)
    elif pointer is not None:
        print_text(explanation(result, pointer))
        for error in errors_elsewhere(result, pointer):
            print_text(error, err=True)
    else:
        show(result, target, document)
    if not result.ok or not is_written:
        raise typer.Exit(1)


def _write(output: Path, result: "Resolution", document: "Document") -> bool:
    """Write the config, unless to stdout; return whether JSON can represent it.

    Prints what is not written as in the file, or why nothing is written.
    """
    problem = "" if _is_settled(result) else "the config is not resolved"
    for path, value in not_finite(result.config):
        if path != STEPS_PER_PRINT or value != inf:
            problem = f"JSON cannot represent {path} = {value}"
        elif value_at(document.value, path) is not ABSENT:
            note(f"{path}: Infinity is not valid JSON; written as null, which never prints either")
    is_file = str(output) != "-"
    if problem and (is_file or _is_settled(result)):
        print_text(f"{output if is_file else 'config'} not written: {problem}", err=True)
    elif is_file:
        write(output, as_json(result.config) + "\n")
    return not problem or not _is_settled(result)


def _is_settled(result: "Resolution") -> bool:
    """Return whether every value is known, also if dsengine does not implement a setting."""
    if result.ok or result.runtime != ENGINE or result.derive() is None:
        return result.ok
    return not any(found.code in examination.UNRESOLVED for found in result.diagnostics)


def not_finite(config: dict[str, Any]) -> Iterator[tuple[KeyPath, float]]:
    """Yield the path and the value of each number that is infinite or NaN."""
    for path, value in walk(config):
        for each in value if is_list(value) else (value,):
            if isinstance(each, float) and not isfinite(each):
                yield path, each


def pointer_of(result: "Resolution", name: str) -> str:
    """Return the pointer of a key given by path or unique name.

    Raises UsageError for an ambiguous or unknown name, with the nearest one.
    """
    known = {entry.pointer for entry in (*result.ledger, *result.diagnostics)}

    def is_present(path: KeyPath) -> bool:
        return path.pointer in known or value_at(result.config, path, None) is not None

    written = KeyPath.parse(name)
    if is_present(written):
        return written.pointer
    with usage():
        paths = [key.key_path for key in key_reference.keys_named(name)]
    candidates = [path for path in paths if is_present(path)] or paths
    if len(candidates) == 1:
        return candidates[0].pointer
    listed = " or ".join(path.dotted for path in candidates[:MOST_NAMED])
    raise UsageError(
        f"--explain: {name} is a key of {len(candidates)} blocks; specify its path, e.g. {listed}"
    )


def data(result: "Resolution", only: str | None) -> dict[str, Any]:
    """Return the JSON form; ``only`` restricts ledger and diagnostics to one pointer."""
    return {
        "format_version": machine_form.FORMAT_VERSION,
        "runtime": result.runtime,
        "config": finite(result.config),
        "ledger": [ledger_data(entry) for entry in result.ledger if only in (None, entry.pointer)],
        "diagnostics": [
            machine_form.diagnostic_data(finding)
            for finding in result.diagnostics
            if only in (None, finding.pointer)
        ],
    }


def as_json(config: dict[str, Any]) -> str:
    """Return valid JSON in the user's key order. An infinite interval becomes null (never).

    Raises ValueError for other numbers that JSON cannot represent.
    """
    return json.dumps(finite(config, infinity=None), indent=4, ensure_ascii=False, allow_nan=False)


def explanation(result: "Resolution", pointer: str) -> str:
    """Return the ledger entry and findings of the key at a pointer, or of all keys of a block."""
    value = lookup(result.config, pointer)

    def concerns(other: str) -> bool:
        return other == pointer or (is_block(value) and other.startswith(f"{pointer}/"))

    parts = [ledger_table.explained(entry) for entry in result.ledger if concerns(entry.pointer)]
    parts += [
        f"{finding.code} {finding.message}\n  help: {finding.help}"
        for finding in result.diagnostics
        if concerns(finding.pointer)
    ]
    if parts and is_block(value):
        parts.append(f"{dotted(pointer)}: all other keys are set in the file")
    if parts:
        return "\n".join(parts)
    if value == AUTO and not result.ok:
        return f'{dotted(pointer)} = "auto": not resolved, because the config has errors'
    if value is not None:
        shown = ledger_table.shown(value)
        return one_line(f"{dotted(pointer)} = {shown}: set in the file")
    return (
        f"{dotted(pointer)} is not set in the file and not filled in: the default applies "
        f"(see `dsconfig explain {dotted(pointer)}`)"
    )


def errors_elsewhere(result: "Resolution", pointer: str) -> list[str]:
    """Return the errors of keys other than the one at a pointer, with their remedies."""
    return [
        one_line(f"{found.code} {found.message}: {found.help}")
        for found in result.diagnostics
        if found.severity is Severity.ERROR and not f"{found.pointer}/".startswith(f"{pointer}/")
    ]


def show(result: "Resolution", target: inference.TargetProgram, document: "Document") -> None:
    """Print the target, the ledger and the findings."""
    width = shutil.get_terminal_size((PIPED_WIDTH, 24)).columns
    print_text(paragraph(target.headline))
    if result.ledger or not result.diagnostics:
        print_text(ledger_table.ledger(result, width))
    if result.diagnostics:
        print_text()
        show_findings(result, document)


def show_findings(result: "Resolution", document: "Document", *, to_stderr: bool = False) -> None:
    """Print the findings, if any, in full."""
    if result.diagnostics:
        report = FileReport(document.name, document.text, Report(result.diagnostics))
        print_text(render.render("full", [report]), err=to_stderr)

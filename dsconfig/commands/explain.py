"""``dsconfig explain KEY|RULE|FILE``: explain a key, a rule, or every key of a file."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dsconfig.commands import completion, options
from dsconfig.commands.notes import note
from dsconfig.commands.printing import print_json, print_text
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project import inference
from dsconfig.project.errors import UsageError, usage
from dsconfig.report import Severity

with lazy_imports():
    from dsconfig.commands import markdown, text_table
    from dsconfig.reference import explanation

if TYPE_CHECKING:
    from dsconfig.source import Document


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KEY|RULE|FILE",
            help="Key, rule code or name, or config file: overlap_comm, DSC401, ds.json.",
            autocompletion=completion.keys_and_rules,
        ),
    ],
    runtime: options.RuntimeName = None,
    output_format: options.FullOrJson = "full",
) -> None:
    """Explain a config key, a rule, or every key of a file.

    For a key: type, defaults, memory, how programs handle "auto", and DeepSpeed's documentation.
    For a file: each key, and how the program that runs the file handles "auto".

    Exit code 1 if a file could be read only in part.
    """
    if explanation.is_file(what):
        _explain_file(what, runtime, output_format)
        return
    if runtime is not None:
        raise UsageError("--runtime requires a file; a key is explained for all programs")
    with usage():
        if output_format == "json":
            data = {"format_version": "1.0", **explanation.data_of(what)}
            print_json(data)
            return
        text = explanation.text_of(what)
    if not text.startswith("# "):
        print_text(text_table.fitted(text))
    elif sys.stdout.isatty():
        markdown.show(text)
    else:
        print_text(text)  # Markdown is wrapped already


def _explain_file(name: str, runtime: str | None, output_format: str) -> None:
    """Print every key of a file for the program that runs it."""
    document = options.load(name)
    problem = _syntax_error(document)
    target = inference.target_program(runtime, None, document=document, source=name)
    with usage():
        if output_format == "json":
            data = {"format_version": "1.0", **explanation.data_of_file(document), **target.data}
            print_json(data)
            _exit_at(problem)
            return
        text = explanation.text_of_file(document, target.runtime.name)
    note(text_table.paragraph(target.headline))
    print_text(text_table.fitted(text))
    _exit_at(problem)


def _syntax_error(document: "Document") -> str:
    """Return the error in the text because of which keys may be missing; empty without one."""
    if not document.is_broken:
        return ""
    found = next((each for each in document.diagnostics if each.severity is Severity.ERROR), None)
    if found is None:
        return ""
    place = f":{found.range.start.line}" if found.range else ""
    return f"{document.name}{place}: {found.message}; keys may be missing above"


def _exit_at(problem: str) -> None:
    """Print the error of a text that could be read in part, and exit with code 1."""
    if problem:
        print_text(text_table.paragraph(problem), err=True)
        raise typer.Exit(1)

"""The file that a person launches: its facts and ds_config for a command, and what was read."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from dsconfig.commands import options
from dsconfig.commands.printing import print_json, print_text
from dsconfig.facts.request import FactsRequest
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError, usage
from dsconfig.report.render.as_json import FORMAT_VERSION

with lazy_imports():
    from dsconfig.commands import text_table
    from dsconfig.facts import gathering, launch_files, launch_request
    from dsconfig.facts.inputs import FactError
    from dsconfig.source import override

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.facts.launch_files import Launch
    from dsconfig.source import Document

SUFFIXES = (".yaml", ".yml", ".json", ".sh", ".bash", ".slurm", ".sbatch", ".py")
_OF_MODEL = ("model", "lora_rank", "lora_targets", "base_weights")
MOST_KEYS = 12
"""Keys that are listed as not understood."""


def launch_in(file: str | None, request: FactsRequest) -> "Launch | None":
    """Return what FILE says, if it launches a program; None for a ds_config and other files."""
    if file is None or not file.endswith(SUFFIXES):
        return None
    with usage():
        releases = gathering.releases_of(request.releases)
    return launch_files.launch_in(file, releases, launch_request.stated_in(request))


def facts_of(
    request: FactsRequest, file: str | None, launch: "Launch | None", output_format: str
) -> "Facts":
    """Return the facts that flags, the project and a launch file state.

    Exits with code 1 if the model of the launch is unknown, after what was read.
    """
    if launch is None:
        return options.facts_from(request, file)
    added = options.project_facts(request, file)
    request = FactsRequest(**{**request.stated, **added})
    completed = launch_request.completed(request, launch)
    try:
        facts = gathering.facts_of(completed)
    except FactError as error:
        if (
            error.argument not in ("model", "lora_rank", "lora_targets")
            or request.model is not None
        ):
            raise UsageError(error.in_flags) from None
        _stop(launch, str(error), output_format)
    return launch_request.with_origins(facts, launch, request)


def document_of(
    file: str, launch: "Launch | None", overrides: list[str] | None, output_format: str = "full"
) -> "Document":
    """Return the ds_config of a file. Exits with code 1 if the launch uses none."""
    if launch is None:
        return options.load(file, overrides)
    if launch.document is None:
        reason = f"{launch.program.title} is launched without DeepSpeed"
        _stop(launch, f"{reason}: there is no ds_config to estimate", output_format)
    if launch.document.is_unreadable or launch.document.is_broken:
        return options.load(file, overrides)
    with usage():
        return override.with_overrides(launch.document, overrides or [])


def _stop(launch: "Launch", reason: str, output_format: str) -> NoReturn:
    """Print what was read and why there is no answer; exit with code 1."""
    if output_format == "json":
        error = {"severity": "error", "message": reason}
        data = {"format_version": FORMAT_VERSION, **launch_request.facts_data(launch)}
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
    """Yield the program, its facts with what decided them, and the files."""
    newest = "" if launch.release_is_stated else " (newest known; --with)"
    yield f"{launch.file}: {launch.program.title} {launch.release}{newest}."
    facts = [
        text
        for name, fact in launch.facts.items()
        if (text := _shown(name, fact.value)) is not None
    ]
    yield f"{'; '.join(facts)}."
    assumed = [name for name, fact in launch.facts.items() if fact.origin.kind == "default"]
    if assumed:
        yield f"Defaults: {', '.join(assumed)}."


def _shown(name: str, value: Any) -> str | None:
    """Return a fact as a person would say it; None if it says nothing."""
    label = name.replace("_", " ")
    if value is True:
        return label
    if value is False:
        return None if name in ("liger", "packing") else f"no {label}"
    if name == "offload":
        moved = [f"{kind} to {device}" for kind, device in value.items() if device != "none"]
        return f"offload of {' and '.join(moved)}" if moved else None
    return f"{label} {value}"

"""Options shared by several commands, and the facts of those that have them.

Each annotated type is one flag with the same meaning in every command.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dsconfig
from dsconfig import os_errors
from dsconfig.commands import completion
from dsconfig.commands.notes import note
from dsconfig.commands.progress import progress
from dsconfig.facts.request import FactsRequest
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError, usage
from dsconfig.report.render import FORMATS
from dsconfig.report.sizes import size
from dsconfig.source.findings import NO_CONFIG, UNREADABLE
from dsconfig.source.pointer import is_block

with lazy_imports():
    from dsconfig import opening
    from dsconfig.commands import host_memory, text_table
    from dsconfig.facts import embedded_facts, gathering, machine
    from dsconfig.planner import plan as plans
    from dsconfig.project import search, settings
    from dsconfig.source import file_kinds, override

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.source import Document


def file_in(context: typer.Context, file: str | None) -> str | None:
    """Return a file; of a directory the first one in it that launches or configures a run.

    Raises UsageError for a directory without one.
    """
    if file is None or context.resilient_parsing or not os_errors.is_folder(file):
        return file
    found = [*search.launch_files_in(file)]
    if not found:
        raise UsageError(f"{file}: no launch file or config in this directory")
    others = f"; also found: {', '.join(found[1:])}" if found[1:] else ""
    note(text_table.paragraph(f"{file}: using {found[0]}{others}"))
    return found[0]


ConfigFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Config or launch file, or a directory with one (- for stdin).",
        callback=file_in,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a key of the file, e.g. zero_optimization.stage=2 (repeatable).",
    ),
]
RuntimeName = Annotated[
    str | None,
    typer.Option(
        metavar="PROGRAM",
        autocompletion=completion.runtimes,
        help="Target program: deepspeed, transformers, accelerate or dsengine (default: inferred).",
    ),
]
DeepSpeedVersion = Annotated[
    str | None,
    typer.Option(
        metavar="X.Y.Z",
        help="Target DeepSpeed release (default: the installed one, or the newest supported).",
    ),
]
FailIfOom = Annotated[
    bool,
    typer.Option("--fail-if-oom", help="Exit with code 1 if it does not fit (default: code 0)."),
]
EXIT_0_ALTHOUGH_OOM = "exit code 0 although it does not fit; use --fail-if-oom to exit with 1"


FORMAT_VARIABLE = "DSCONFIG_OUTPUT_FORMAT"
MARKDOWN = "markdown"
"""Output format of ``diff``."""


def output_format(*known: str) -> Any:
    """Return the option that selects one of these output formats.

    The variable may also name a format of another command; it means the first one here.
    """

    def check(context: typer.Context, form: str) -> str:
        if form in known:
            return form
        if is_flag(context, "output_format"):
            raise UsageError(f"--output-format: {form!r} is not one of {', '.join(known)}")
        if form not in (*FORMATS, MARKDOWN):
            raise UsageError(f"{FORMAT_VARIABLE}: {form!r} is not one of {', '.join(FORMATS)}")
        return known[0]

    def complete(incomplete: str) -> list[str]:
        return completion.beginning(incomplete, known)

    *others, last = known
    return typer.Option(
        metavar="FORMAT",
        autocompletion=complete,
        envvar=FORMAT_VARIABLE,
        help=f"Output format: {', '.join(others)} or {last}.",
        callback=check,
    )


def is_flag(context: typer.Context, name: str) -> bool:
    """Return whether a parameter is set on the command line, not by a variable or a default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


FullOrJson = Annotated[str, output_format("full", "json")]


def load(
    source: str, overrides: list[str] | None = None, facts: "Facts | None" = None
) -> "Document":
    """Read a config and apply overrides. Raises UsageError as :func:`prepared` does.

    ``facts`` may name another config, which replaces that of accelerate's YAML.
    """
    return prepared(opened(source), source, overrides, facts)


def opened(source: str) -> "Document":
    """Read a file, or stdin once. Raises UsageError for a blank name."""
    if not source.strip():
        raise UsageError(f"{source!r} is not a file name; specify a config, or - for stdin")
    return dsconfig.read(source)


def prepared(
    document: "Document", source: str, overrides: list[str] | None, facts: "Facts | None"
) -> "Document":
    """Return the config that a run uses, with overrides applied.

    Raises UsageError for a file that cannot be read and for a plan.
    """
    codes = (UNREADABLE, NO_CONFIG) if document.is_unreadable else (UNREADABLE,)
    errors = [finding for finding in document.diagnostics if finding.code in codes]
    if errors:
        raise UsageError(f"{document.name}: {errors[0].message}")
    if is_block(document.value) and file_kinds.another_kind(document.value) is file_kinds.PLAN:
        remedy = file_kinds.PLAN.help.replace("FILE", source)
        raise UsageError(f"{document.name}: this is a plan, not a config; {remedy}")
    used = opening.used(document, facts)
    if used.name != document.name:
        note(
            f"{source} names {document.name}, but TrainingArguments name {used.name}, which the "
            "Trainer uses"
        )
    with usage():
        return override.with_overrides(used, overrides or [])


def parsed(config: dict[str, Any], name: str, overrides: list[str] | None) -> "Document":
    """Return a config that is not from a file, with overrides applied. Raises UsageError."""
    with usage():
        return override.with_overrides(dsconfig.read(config, name=name), overrides or [])


def completed(facts: "Facts", document: "Document") -> "Facts":
    """Return the facts, completed from the YAML file that embeds the config."""
    is_inside = document.container or document.opened
    return embedded_facts.complete(facts, document) if is_inside else facts


def with_this_machine(facts: "Facts", *, ranks: bool = True) -> "Facts":
    """Return the facts with this machine's GPUs if no device is specified, and its host memory if
    the device is also this machine's; prints a note for each.

    ``ranks``: also assume one rank per GPU if their number is not specified.
    """
    gpus = machine.local_gpus()
    if not gpus:
        return facts
    if facts.device is not None:
        return with_memory_here(facts, gpus)
    name, memory = gpus[0]
    try:
        device = replace(machine.named_device(name), memory_bytes=memory)
    except ValueError:
        device = machine.DeviceFacts(name=name, memory_bytes=memory)
    facts = replace(facts, device=device, origins={**facts.origins, "device": "this machine"})
    if ranks and facts.world_size is None:
        facts = replace(facts, world_size=len(gpus), nodes=1)
    count = facts.world_size or 1
    note(f"device: {count} x {name}, detected; override with --device")
    return with_memory_here(facts, gpus)


def with_memory_here(facts: "Facts", gpus: list[tuple[str, int]] | None = None) -> "Facts":
    """Return the facts with this machine's host memory if its GPUs are those of the facts; prints
    a note."""
    gpus = machine.local_gpus() if gpus is None else gpus
    detected = host_memory.with_memory_here(facts, gpus)
    if (
        detected is not facts
        and detected.host is not None
        and detected.host.memory_bytes is not None
    ):
        memory = size(detected.host.memory_bytes, 0)
        note(f"host memory: {memory}, detected; override with --host-memory")
    return detected


def measured_here(facts: "Facts") -> "Facts":
    """Return the facts with measured bandwidths of this machine; prints them to stderr.

    Raises UsageError as ``measured`` does.
    """
    host = measured(facts.host or machine.HostFacts())
    for subject, text in measurements(host):
        note(f"{subject}: {text}")
    return replace(facts, host=host, origins={**facts.origins, "host": "measured here"})


def measured(host: "machine.HostFacts") -> "machine.HostFacts":
    """Measure this machine. Raises UsageError without torch or for an unusable NVMe directory."""
    if host.nvme_path == "":
        raise UsageError("--nvme is empty; specify a directory on the disk to measure")
    try:
        from dsengine.tiers import speeds

        with progress("Measuring memory and disk bandwidth"):
            return speeds.measure_rates(host)
    except ImportError as error:
        raise UsageError("measuring needs torch: pip install 'dsconfig-zero[engine]'") from error
    except OSError as error:
        raise UsageError(f"--nvme: {host.nvme_path}: {error.strerror}") from error


def measurements(host: "machine.HostFacts") -> Iterator[tuple[str, str]]:
    """Yield (subject, measurement) for each measured bandwidth."""
    if host.copy_gb_per_second is not None:
        yield "host memory", f"copy bandwidth {host.copy_gb_per_second:.1f} GB/s (read + write)"
    if host.nvme_read_gb_per_second is not None:
        yield (
            "NVMe",
            f"{host.nvme_path}: read {host.nvme_read_gb_per_second:.2f} GB/s, write "
            f"{host.nvme_write_gb_per_second:.2f} GB/s",
        )
    if host.card_gb_per_second is not None:
        yield "host to GPU", f"{host.card_gb_per_second:.1f} GB/s from pinned memory"


def facts_from(request: FactsRequest, file: str | None) -> "Facts":
    """Return the facts stated by flags, and the model and devices of the project of ``file``.

    Raises UsageError that names the flag. Prints a note about what is from the project.
    """
    added = project_facts(request, file)
    if added:
        shown = " ".join(f"--{name} {value}" for name, value in added.items())
        note(f"using {shown} from {settings.settings_for(file or '.').file}")
    return stated_facts(FactsRequest(**{**request.stated, **added}))


def stated_facts(request: FactsRequest) -> "Facts":
    """Return the facts stated by flags. Raises UsageError that names the flag."""
    with usage():
        return gathering.facts_of(request)


def project_facts(request: FactsRequest, file: str | None) -> dict[str, Any]:
    """Return the model and devices of the project of ``file``, unless stated by flags.

    A plan already contains them.
    """
    stated, replaced = request.stated, {"model": "params", "device": "device_memory"}
    added = {
        name: value
        for name, value in settings.settings_for(file or ".").facts.items()
        if name not in stated and replaced.get(name) not in stated
    }
    return {} if added and file is not None and text_of_plan(file) is not None else added


def text_of_plan(file: str) -> str | None:
    """Return the text of a plan file; None if the file is not a plan."""
    try:
        if not os_errors.is_file(file):
            return None  # a pipe can be read only once, and holds a config
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return text if plans.is_plan(text) else None

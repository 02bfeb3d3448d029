"""Options that several commands share, and the facts they make.

Every annotated type here is one flag with one meaning everywhere.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.runtimes.base import Runtime
    from dsconfig.source import Document

FACTS = "Facts"

ConfigFile = Annotated[str, typer.Argument(metavar="FILE", help="The config; - reads stdin.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a key of the file (repeatable)."),
]
RuntimeName = Annotated[
    str | None,
    typer.Option("--runtime", help="dsengine, deepspeed, transformers or accelerate."),
]
DeepSpeedVersion = Annotated[
    str | None,
    typer.Option(
        "--deepspeed-version",
        metavar="X.Y.Z",
        help="Judge for this release; default: the installed one, else the newest known.",
    ),
]
OutputFormat = Annotated[
    str,
    typer.Option("--output-format", envvar="DSCONFIG_OUTPUT_FORMAT", help="How to print."),
]
WorldSize = Annotated[
    int | None,
    typer.Option("--gpus", "--world-size", help="Number of ranks.", rich_help_panel=FACTS),
]
Nodes = Annotated[
    int | None, typer.Option("--nodes", help="Number of nodes.", rich_help_panel=FACTS)
]
Device = Annotated[
    str | None,
    typer.Option("--device", help="Card (a100-80gb, h100 ...), or cpu.", rich_help_panel=FACTS),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A catalogue name (llama-2-13b ...) or a config.json.",
        rich_help_panel=FACTS,
    ),
]
Params = Annotated[
    str | None,
    typer.Option("--params", help="Parameter count: 13e9, 13B, 700M.", rich_help_panel=FACTS),
]
TrainingArgs = Annotated[
    Path | None,
    typer.Option(
        "--training-args",
        help="TrainingArguments as JSON or YAML.",
        rich_help_panel=FACTS,
    ),
]
AccelerateConfig = Annotated[
    Path | None,
    typer.Option("--accelerate-config", help="An accelerate YAML.", rich_help_panel=FACTS),
]
MicroBatch = Annotated[
    int | None,
    typer.Option("--micro-batch", help="Samples per GPU per pass.", rich_help_panel=FACTS),
]
GlobalBatch = Annotated[
    int | None,
    typer.Option("--global-batch", help="Samples per optimizer step.", rich_help_panel=FACTS),
]
SequenceLength = Annotated[
    int | None,
    typer.Option("--seq-len", help="Tokens per sample.", rich_help_panel=FACTS),
]
HostMemory = Annotated[
    str | None,
    typer.Option("--host-memory", help="Main memory per node: 512GiB.", rich_help_panel=FACTS),
]


def load(source: str, overrides: list[str] | None = None) -> "Document":
    """Read a config for a command. Raises UsageError when there is nothing to read."""
    import dsconfig
    from dsconfig.commands.errors import UsageError
    from dsconfig.source import with_overrides

    if not source.strip():
        raise UsageError(f"{source!r} names no file; name the config, or - for stdin")
    document = dsconfig.read(source)
    unreadable = [found for found in document.diagnostics if found.code == "DSC001"]
    if unreadable:
        raise UsageError(f"{document.name}: {unreadable[0].message}")
    try:
        return with_overrides(document, overrides or [])
    except ValueError as error:
        raise UsageError(str(error)) from None


def program(runtime: str | None, version: str | None) -> "Runtime":
    """The runtime of the flags at their DeepSpeed release, dsengine by default.

    Raises UsageError for one that is unknown.
    """
    from dsconfig.commands.errors import UsageError
    from dsconfig.runtimes.base import runtime_of
    from dsconfig.schema.installed import installed_or_newest
    from dsconfig.schema.version import Version

    try:
        release = installed_or_newest() if version is None else Version.parse(version)
        return runtime_of(runtime or "dsengine", release)
    except ValueError as error:
        raise UsageError(str(error)) from None


def facts_from(**flags: object) -> "Facts":
    """Facts from command-line flags. Raises UsageError with the flag and the remedy."""
    from dsconfig.commands.errors import UsageError
    from dsconfig.facts import gather

    try:
        return gather(**flags)  # type: ignore[arg-type]
    except ValueError as error:
        raise UsageError(str(error)) from None

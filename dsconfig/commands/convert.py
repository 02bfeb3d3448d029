"""``dsconfig convert FILE --to ...``: write the config in another format."""

import json
from base64 import urlsafe_b64encode
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsconfig import os_errors
from dsconfig.commands import options
from dsconfig.commands.flags import Only
from dsconfig.commands.notes import note
from dsconfig.commands.writing import write
from dsconfig.facts.request import FactsRequest
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError, usage
from dsconfig.project.neighbours import YAMLS
from dsconfig.report import writers
from dsconfig.schema.paths import STAGE
from dsconfig.source.pointer import is_block, value_at

with lazy_imports():
    import yaml

    from dsconfig.commands import prepare
    from dsconfig.conversion import (
        accelerate_fsdp2,
        from_accelerate,
        fsdp2,
        torchtitan,
        unconverted,
    )
    from dsconfig.project import launch_file
    from dsconfig.runtimes import effective as settings


if TYPE_CHECKING:
    from dsconfig.facts import Facts
    from dsconfig.source import Document


class Format(StrEnum):
    JSON = "json"
    """Strict JSON, as transformers and accelerate require; drops comments."""
    BASE64 = "base64"
    """Base64, which DeepSpeed accepts on the command line."""
    ACCELERATE = "accelerate"
    """An accelerate YAML that references the file."""
    ACCELERATE_FSDP2 = "accelerate-fsdp2"
    """An accelerate YAML for PyTorch FSDP2 (fully_shard), without DeepSpeed."""
    FSDP2 = "fsdp2"
    """A Python module that trains with PyTorch FSDP2, without DeepSpeed or accelerate."""
    TORCHTITAN = "torchtitan"
    """A job config of torchtitan (TOML)."""


Out = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Output file (default: stdout)."),
]


def convert(
    file: options.ConfigFile,
    to: Annotated[Format, typer.Option(help="Output format.")],
    *,
    request: Annotated[FactsRequest, Only("gpus nodes", gpus=1)],
    overrides: options.Overrides = None,
    output: Out = None,
) -> None:
    """Convert a config to another format, or accelerate's YAML for FSDP to JSON.

    Keys that the format cannot represent are listed in the output as comments; for JSON, settings
    of accelerate's YAML are listed on stderr.
    """
    if (launch := _fsdp_launch(file)) is not None and to is Format.JSON:
        write(output, _from_fsdp(file, launch))
        return
    document = options.load(file, overrides)
    if document.is_broken:
        prepare.show_errors(document, document.diagnostics)
    facts = options.stated_facts(request)  # rejects impossible counts
    config: object = document.value
    if not is_block(config):
        raise UsageError(f"{document.name}: the config is not an object")
    gpus, nodes = facts.world_size or 1, facts.nodes or 1
    match to:
        case Format.JSON:
            text = json.dumps(config, indent=4) + "\n"
        case Format.BASE64:
            text = urlsafe_b64encode(json.dumps(config).encode()).decode() + "\n"
        case Format.ACCELERATE:
            _require_file(document, file)
            stage = value_at(config, STAGE, 0)
            named = launch_file.naming(document.name, stage, gpus=gpus, nodes=nodes)
            text = writers.yaml(named)
        case Format.ACCELERATE_FSDP2 | Format.FSDP2 | Format.TORCHTITAN:
            text = _converted(to, document, file, facts)
    write(output, text)


def _require_file(document: "Document", file: str) -> None:
    """Raise UsageError unless an accelerate YAML can name the file."""
    if document.is_generated or document.named_in is not None:
        raise UsageError(f"{file}: this is already an accelerate YAML; its config: --to json")
    if document.container or document.name != file or document.overrides:
        what = "--set changes" if document.overrides else "stdin" if file == "-" else "this file"
        raise UsageError(
            f"{document.name}: the accelerate YAML names the file of the config, and {what} "
            "cannot be named; write the config with --to json -o ds.json and convert that file"
        )


def _converted(to: Format, document: "Document", file: str, facts: "Facts") -> str:
    """Return the config in the format of a program without DeepSpeed. Raises UsageError."""
    command = f"`{writers.shell(['dsconfig', 'resolve', file, '-o', 'new.json'])}`"

    def reads(path: str) -> bool:
        if to is Format.ACCELERATE_FSDP2:
            return accelerate_fsdp2.reads(path)
        return not unconverted.is_scheduling(path)

    try:
        config, unread = unconverted.without_autos(document.value, reads)
    except ValueError as error:
        raise UsageError(
            f"{document.name}: {error}; specify it with --set, or resolve the config first: "
            f"{command}"
        ) from None
    with usage(document.name):
        settled = settings.effective(config, facts)
        if to is Format.FSDP2:
            return fsdp2.module(settled, document.name, unread)
        if to is Format.TORCHTITAN:
            return torchtitan.toml_text(settled, unread)
        gpus, nodes = facts.world_size or 1, facts.nodes or 1
        return accelerate_fsdp2.yaml_text(settled, gpus, nodes, unread)


def _fsdp_launch(file: str) -> dict[str, Any] | None:
    """Return accelerate's YAML if it is one for FSDP."""
    if not file.endswith(YAMLS) or not os_errors.is_file(file):
        return None
    try:
        data: Any = yaml.safe_load(Path(file).read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return data if is_block(data) and from_accelerate.is_fsdp(data) else None


def _from_fsdp(file: str, launch: dict[str, Any]) -> str:
    """Return the ds_config of accelerate's YAML; prints what it does not represent."""
    with usage(file):
        done = from_accelerate.converted(launch)
    for name, remark in done.unconverted.items():
        note(f"not converted: {name} = {json.dumps(_setting(launch, name))} ({remark})")
    return json.dumps(done.config, indent=4) + "\n"


def _setting(launch: dict[str, Any], name: str) -> Any:
    blocks = (launch, launch.get("fsdp_config"), launch.get("parallelism_config"))
    for block in filter(is_block, blocks):
        for written in (name, name.removeprefix("fsdp_")):
            if written in block:
                return block[written]
    return None

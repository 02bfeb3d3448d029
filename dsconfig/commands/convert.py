"""``dsconfig convert FILE --to ...``: write the config in another format."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsconfig.commands import options
from dsconfig.commands.writing import write
from dsconfig.lazy_imports import lazy_imports
from dsconfig.project.errors import UsageError
from dsconfig.schema import find
from dsconfig.source.pointer import dotted, is_block, lookup, split

with lazy_imports():
    from dsconfig.commands import prepare
    from dsconfig.planner.coverage import cover
    from dsconfig.project import launch_file
    from dsconfig.runtimes import effective as settings


if TYPE_CHECKING:
    from dsconfig.source import Document


class Format(StrEnum):
    JSON = "json"
    """Strict JSON, as transformers and accelerate require; drops comments."""
    BASE64 = "base64"
    """Base64, which DeepSpeed accepts on the command line."""
    ACCELERATE = "accelerate"
    """An accelerate YAML that references the file."""
    FSDP2 = "fsdp2"
    """An accelerate YAML for PyTorch FSDP2 (fully_shard), without DeepSpeed."""


Out = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Output file (default: stdout)."),
]


@options.with_flags("gpus nodes", gpus=1)
def convert(
    file: options.ConfigFile,
    to: Annotated[Format, typer.Option(help="Output format.")],
    *,
    flags: Mapping[str, int | None],
    overrides: options.Overrides = None,
    output: Out = None,
) -> None:
    """Convert a config to strict JSON, base64, an accelerate YAML or an FSDP2 YAML."""
    document = options.load(file, overrides)
    if document.is_broken:
        prepare.show_errors(document, document.diagnostics)
    facts = options.facts_from(**flags)  # rejects impossible counts
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
            stage = lookup(config, "/zero_optimization/stage", 0)
            named = launch_file.naming(document.name, stage, gpus=gpus, nodes=nodes)
            text = launch_file.dumped(named)
        case Format.FSDP2:
            text = as_fsdp2(document, file, gpus, nodes)
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


def as_fsdp2(document: "Document", file: str, gpus: int, nodes: int) -> str:
    """Map the settings that FSDP2 supports; list the others as comments.

    Raises UsageError for an unresolved config.
    """
    try:
        settled = settings.effective(document.value)
    except ValueError as error:
        command = f"`dsconfig resolve {file} -o new.json`"
        raise UsageError(f"{document.name}: {error}: {command}") from None
    zero = settled.zero
    gathers = zero.stage == 3 and zero.gather_16bit_weights_on_model_save
    fsdp = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": zero.stage == 3,
        "fsdp_offload_params": zero.parameter_tier is settings.Tier.HOST,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "FULL_STATE_DICT" if gathers else "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": zero.stage == 3,
        "fsdp_activation_checkpointing": settled.activation_checkpointing.enabled,
    }
    precision = {"fp32": "no"}.get(settled.numerics.precision, settled.numerics.precision)
    launch = launch_file.head("FSDP", gpus, nodes)
    text = launch_file.dumped({**launch, "mixed_precision": str(precision), "fsdp_config": fsdp})
    return text + "".join(f"{line}\n" for line in _not_converted(document, settled))


def _not_converted(document: "Document", settled: "settings.Effective") -> list[str]:
    """Return the keys without an equivalent as YAML comments, by what to do about them."""
    pointers = [row.pointer for row in cover.coverage(settled) if row.pointer not in FSDP_KEYS]
    lines: list[str] = []
    for title, is_read in ((TO_BE_SET, True), (UNREAD, False)):
        listed = [each for each in pointers if (find(split(each)) is not None) is is_read]
        lines += [f"# {title}"] if listed else []
        values = {dotted(pointer): lookup(document.value, pointer) for pointer in listed}
        lines += [f"#   {path} = {json.dumps(value)}" for path, value in values.items()]
    return lines


TO_BE_SET = "No FSDP2 equivalent in this file; set these in the training script or drop them:"
UNREAD = "Not converted: DeepSpeed does not read these keys either:"
FSDP_KEYS = frozenset(
    f"/{path}"
    for path in (
        "bf16/enabled",
        "fp16/enabled",
        "zero_optimization/stage",
        "zero_optimization/offload_param/device",
        "zero_optimization/stage3_gather_16bit_weights_on_model_save",
        "activation_checkpointing/cpu_checkpointing",
    )
)
"""Keys covered by the settings above."""

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
from dsconfig.source.pointer import dotted, is_block, lookup

with lazy_imports():
    from dsconfig.commands import prepare
    from dsconfig.planner.coverage import cover
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


@options.with_flags("gpus nodes", gpus=1, nodes=1)
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
    options.facts_from(**flags)  # rejects impossible counts
    config: object = document.value
    if not is_block(config):
        raise UsageError(f"{document.name}: the config is not an object")
    gpus, nodes = flags["gpus"] or 1, flags["nodes"] or 1
    match to:
        case Format.JSON:
            text = json.dumps(config, indent=4)
        case Format.BASE64:
            text = urlsafe_b64encode(json.dumps(config).encode()).decode()
        case Format.ACCELERATE:
            text = as_accelerate(document, gpus, nodes)
        case Format.FSDP2:
            text = as_fsdp2(document, gpus, nodes)
    write(output, f"{text}\n")


def as_accelerate(document: "Document", gpus: int, nodes: int) -> str:
    if document.is_generated:
        raise UsageError(f"{document.name}: this is already an accelerate YAML")
    stage = lookup(document.value, "/zero_optimization/stage", 0)
    lines = [
        *_head("DEEPSPEED", gpus, nodes),
        "deepspeed_config:",
        f"  deepspeed_config_file: {json.dumps(document.name)}",
        f"  zero3_init_flag: {_yaml(stage == 3)}",
    ]
    return "\n".join(lines)


def as_fsdp2(document: "Document", gpus: int, nodes: int) -> str:
    """Map the settings that FSDP2 supports; list the other keys as comments."""
    try:
        settled = settings.effective(document.value)
    except ValueError as error:
        raise UsageError(f"{document.name}: {error}; resolve the config first") from None
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
    lines = [
        *_head("FSDP", gpus, nodes),
        f"mixed_precision: {_yaml(str(precision))}",
        "fsdp_config:",
        *(f"  {name}: {_yaml(value)}" for name, value in fsdp.items()),
    ]
    unmapped = [row.pointer for row in cover.coverage(settled) if row.pointer not in FSDP_KEYS]
    lines += ["# No FSDP2 equivalent; set these in the training script:"] if unmapped else []
    values = {dotted(pointer): lookup(document.value, pointer) for pointer in unmapped}
    lines += [f"#   {path} = {json.dumps(value)}" for path, value in values.items()]
    return "\n".join(lines)


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


def _head(kind: str, gpus: int, nodes: int) -> list[str]:
    return [
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {kind}",
        f"num_machines: {nodes}",
        f"num_processes: {gpus}",
    ]


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) and value not in ("no", "yes") else json.dumps(value)

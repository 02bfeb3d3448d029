"""``dsconfig convert FILE --to ...``: the same config in another program's form."""

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsconfig.commands import options
from dsconfig.commands.errors import UsageError
from dsconfig.commands.writing import write
from dsconfig.lazily import lazily
from dsconfig.source.pointer import dotted, lookup

with lazily():
    from dsconfig.commands import prepare
    from dsconfig.planner.coverage import cover
    from dsconfig.runtimes import effective as settings


if TYPE_CHECKING:
    from dsconfig.runtimes.effective import Effective
    from dsconfig.source import Document


class Target(StrEnum):
    JSON = "json"
    """Strict JSON, which transformers and accelerate need: comments go, meaning stays."""
    BASE64 = "base64"
    """One word for a command line, as DeepSpeed takes it."""
    ACCELERATE = "accelerate"
    """An accelerate YAML that points at the file."""
    FSDP2 = "fsdp2"
    """An accelerate YAML for PyTorch's own fully_shard, without DeepSpeed."""


Wanted = Annotated[Target, typer.Option("--to", help="The form to write.")]
Out = Annotated[Path | None, typer.Option("-o", "--output", help="Write here, not to stdout.")]


def convert(
    file: options.ConfigFile,
    to: Wanted,
    gpus: options.WorldSize = 1,
    nodes: options.Nodes = 1,
    overrides: options.Overrides = None,
    output: Out = None,
) -> None:
    """Write the config as strict JSON, base64, an accelerate YAML, or an FSDP2 YAML."""
    document = options.load(file, overrides)
    if document.is_broken:
        prepare.show_errors(document, document.diagnostics)
    options.facts_from(world_size=gpus, nodes=nodes)  # refuses counts that cannot be
    if not isinstance(document.value, dict):
        raise UsageError(f"{document.name}: the config is not an object")
    text = WRITERS[to](document, gpus or 1, nodes or 1)
    if output is None:
        typer.echo(text)
    else:
        write(output, text + "\n")


def as_json(document: "Document", gpus: int, nodes: int) -> str:
    return json.dumps(document.value, indent=4)


def as_base64(document: "Document", gpus: int, nodes: int) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(json.dumps(document.value).encode()).decode()


def as_accelerate(document: "Document", gpus: int, nodes: int) -> str:
    if document.is_made:
        raise UsageError(f"{document.name}: this is accelerate's YAML already")
    stage = lookup(document.value, "/zero_optimization/stage", 0)
    lines = [
        *_head("DEEPSPEED", gpus, nodes),
        "deepspeed_config:",
        f"  deepspeed_config_file: {json.dumps(document.name)}",
        f"  zero3_init_flag: {_yaml(stage == 3)}",
    ]
    return "\n".join(lines)


def as_fsdp2(document: "Document", gpus: int, nodes: int) -> str:
    """Map what FSDP2 has a word for; list every other key of the file as a comment."""
    settled = _effective(document)
    precision = {"fp32": "no"}.get(settled.numerics.precision, settled.numerics.precision)
    lines = [
        *_head("FSDP", gpus, nodes),
        f"mixed_precision: {_yaml(str(precision))}",
        "fsdp_config:",
        *(f"  {name}: {_yaml(value)}" for name, value in _fsdp_settings(settled)),
    ]
    left = [row.pointer for row in cover.coverage(settled) if row.pointer not in FSDP_KEYS]
    lines += ["# Not expressed here; set these in the training script:"] if left else []
    values = {dotted(pointer): lookup(document.value, pointer) for pointer in left}
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
"""What the settings below carry over."""


def _fsdp_settings(settled: "Effective") -> Iterator[tuple[str, Any]]:
    zero = settled.zero
    gathers = zero.stage == 3 and zero.gather_16bit_weights_on_model_save
    yield "fsdp_version", 2
    yield "fsdp_reshard_after_forward", zero.stage == 3
    yield "fsdp_offload_params", zero.parameter_tier is settings.Tier.HOST
    yield "fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"
    yield "fsdp_state_dict_type", "FULL_STATE_DICT" if gathers else "SHARDED_STATE_DICT"
    yield "fsdp_cpu_ram_efficient_loading", zero.stage == 3
    yield "fsdp_activation_checkpointing", settled.activation_checkpointing.enabled


def _effective(document: "Document") -> "Effective":
    try:
        return settings.effective(document.value)
    except ValueError as error:
        raise UsageError(f"{document.name}: {error}; run `dsconfig resolve` first") from None


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


WRITERS: Mapping[Target, Any] = {
    Target.JSON: as_json,
    Target.BASE64: as_base64,
    Target.ACCELERATE: as_accelerate,
    Target.FSDP2: as_fsdp2,
}

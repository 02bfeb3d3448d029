"""Facts of a launch as a request for facts, and as JSON."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from dsconfig.facts.facts import Facts
from dsconfig.facts.launch_facts import DEFAULT, ENVIRONMENT, FLAG
from dsconfig.facts.launch_files import FROZEN, Launch
from dsconfig.facts.request import FactsRequest
from dsconfig.facts.trainer_fields import FORMER, TAKEN
from dsconfig.source.pointer import is_list

_TRAINER_NAMES = {
    "micro_batch": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "gradient_checkpointing": "gradient_checkpointing",
    "optimizer": "optim",
    "lr_scheduler": "lr_scheduler_type",
    "seq_len": "max_length",
    "attention": "attn_implementation",
    "liger": "use_liger_kernel",
}
"""Facts and the TrainingArguments that say the same."""


def completed(request: FactsRequest, launch: Launch) -> FactsRequest:
    """Return a request with the facts of a launch; stated ones stay."""
    added: dict[str, Any] = {}
    values = {name: fact.value for name, fact in launch.facts.items()}
    if request.params is None:
        added["model"] = values.get("model")
    added["gpus"], added["nodes"] = values.get("ranks"), values.get("nodes")
    if added["nodes"] is not None and not _divides(added["nodes"], added["gpus"]):
        added["nodes"] = None
    added["seq_len"] = values.get("seq_len")
    model = values.get("model")
    copies = [name for name in FROZEN if model is not None and values.get(name) == model]
    added["frozen_copies"] = len(copies) or None
    added["sequences_per_sample"] = values.get("sequences_per_sample")
    share = values.get("engine_memory")
    takes = isinstance(share, int | float) and 0 < share < 1 and not values.get("engine_sleeps")
    added["inference_share"] = share if takes else None
    if values.get("lora"):
        added["lora_rank"] = values.get("lora_rank")
        targets = values.get("lora_targets")
        added["lora_targets"] = ",".join(map(str, targets)) if is_list(targets) else targets
        bits = values.get("base_bits")
        added["base_weights"] = f"{bits}bit" if bits in (4, 8) else None
    if request.training_args is None:
        added["training_args"] = arguments_of(launch)
    stated = request.stated
    kept = {name: value for name, value in added.items() if value is not None}
    return FactsRequest(**{**kept, **stated})


def _divides(nodes: object, ranks: object) -> bool:
    return isinstance(nodes, int) and isinstance(ranks, int) and ranks % nodes == 0


def arguments_of(launch: Launch) -> dict[str, Any]:
    """Return the TrainingArguments of a launch: its own facts, and keys of the same names."""
    arguments = {
        name: found.value
        for name, found in launch.keys.items()
        if (name in TAKEN or name in FORMER) and _is_usable(found.value)
    }
    stated = {name: fact.value for name, fact in launch.own.items() if _is_stated(name, launch)}
    arguments |= {name: stated[fact] for fact, name in _TRAINER_NAMES.items() if fact in stated}
    precision = stated.get("precision")
    if precision is not None and launch.own["precision"].origin.kind == ENVIRONMENT:
        precision = None  # the launcher's, which is no argument
    for name in ("bf16", "fp16"):
        arguments.pop(name, None)
        if precision in ("bf16", "fp16"):
            arguments[name] = name == precision
    for name in ("deepspeed", "output_dir"):
        arguments.pop(name, None)
    return arguments


def _is_stated(name: str, launch: Launch) -> bool:
    """Return whether a fact is an argument: not a default that the ds_config replaces, which the
    Trainer does not compare with it."""
    own = launch.own[name]
    return own.origin.kind != DEFAULT or own.value == launch.value(name)


def _is_usable(value: object) -> bool:
    return isinstance(value, bool | int | float | str) and value != "auto"


def with_origins(facts: Facts, launch: Launch) -> Facts:
    """Return facts whose origins are places in the launch file."""
    origins = dict(facts.origins)
    fields = {
        "ranks": "world_size",
        "nodes": "nodes",
        "model": "model",
        "seq_len": "sequence_length",
        "micro_batch": "micro_batch_size",
        "accumulation": "gradient_accumulation_steps",
        "precision": "precision",
    }
    for name, field in fields.items():
        fact = launch.facts.get(name)
        if fact is not None and fact.origin.kind != FLAG and field in origins:
            origins[field] = fact.origin.source
    origins["training"] = launch.file
    return replace(facts, origins=MappingProxyType(origins))


def facts_data(launch: Launch) -> Mapping[str, Any]:
    """Return the JSON form: every fact with its origin, and the keys that were not understood."""
    return {
        "program": {"name": launch.program.title, "release": launch.release},
        "files": list(launch.files),
        "facts": {
            name: {
                "value": fact.value,
                "origin": {"kind": fact.origin.kind, "source": fact.origin.source},
            }
            for name, fact in launch.facts.items()
        },
        "not_understood": [each._asdict() for each in launch.not_understood],
    }

"""Facts from the YAML file around a config: accelerate's, or a trainer's.

accelerate's file has the number of processes and their precision. A trainer's file has the
fields of TrainingArguments, some renamed: LLaMA-Factory and ms-swift use the original names,
axolotl renames the batch size, and each has its own name for the sequence length.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsconfig.facts import accelerate_config, parallelism
from dsconfig.facts.facts import Facts
from dsconfig.facts.inputs import FactError
from dsconfig.facts.trainer_fields import FORMER, TAKEN
from dsconfig.facts.training import TrainingFacts, training
from dsconfig.source import arctic_config, plugin_settings
from dsconfig.source.document import Document, count_distinctive
from dsconfig.source.from_yaml import EMBEDDING_KEYS
from dsconfig.source.pointer import is_block

ALIASES: Mapping[str, str] = {
    "micro_batch_size": "per_device_train_batch_size",
    "num_epochs": "num_train_epochs",
    "sequence_len": "max_length",
    "cutoff_len": "max_length",
    "max_seq_length": "max_length",
    "max_length": "max_length",
}
"""Names in axolotl (the first three), LLaMA-Factory and others, with their original names."""


def complete(facts: Facts, document: Document) -> Facts:
    """Return the facts, completed from the document's container file; given facts win."""
    container = document.container
    if not container:
        return facts
    try:
        name = document.named_in or document.name
        if is_accelerate_config(container):
            return facts if facts.launch else _with_launch(facts, container, name)
        if arctic_config.is_arctic(container):
            return _with_arctic(facts, container)
        return _with_arguments(facts, container, name)
    except FactError:  # an invalid value, which a rule reports, or a file of another program
        return facts


def is_accelerate_config(container: Mapping[str, Any]) -> bool:
    """Return whether a YAML file was written by ``accelerate config``."""
    return plugin_settings.is_accelerate_config(container, plugin_settings.block_of(container))


def _with_launch(facts: Facts, container: Mapping[str, Any], name: str) -> Facts:
    launch = accelerate_config.launch(container)
    known, origins = facts.training, {**facts.origins, "launch": name}
    if launch.precision is not None and (known is None or known.precision is None):
        known = replace(known or training({}), precision=launch.precision)
        origins["precision"] = name
    return replace(
        facts,
        launch=dict(container),
        degrees=parallelism.with_sizes(facts.degrees, container, None, None),
        world_size=facts.world_size or launch.world_size,
        nodes=facts.nodes or launch.nodes,
        training=known,
        origins=origins,
    )


def _with_arctic(facts: Facts, container: Mapping[str, Any]) -> Facts:
    """Return the facts with the sequence length and kernels of ArcticTraining's YAML."""
    model, known = container["model"], facts.training or TrainingFacts()
    arguments: dict[str, Any] = {
        "gradient_checkpointing": not model.get("disable_activation_checkpoint", False),
        "attn_implementation": model.get("attn_implementation", "sdpa"),
        "use_liger_kernel": model.get("type") == "liger",
    }
    length = container["data"].get("max_length")
    usable = type(length) is int and length > 0
    return replace(
        facts,
        training=replace(
            known,
            sequence_length=known.sequence_length or (length if usable else None),
            arguments={**arguments, **known.arguments},
        ),
    )


def _with_arguments(facts: Facts, container: Mapping[str, Any], name: str) -> Facts:
    arguments = {**trainer_arguments(_nested_arguments(container)), **trainer_arguments(container)}
    flags = facts.training
    if not arguments or (flags is not None and flags.arguments):
        return facts
    merged = training(arguments)
    if flags is not None:
        own = {field: getattr(flags, field) for field in flags.__slots__ if field != "arguments"}
        merged = replace(
            merged, **{field: value for field, value in own.items() if value is not None}
        )
    return replace(facts, training=merged, origins={**facts.origins, "training": name})


def _nested_arguments(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the block of a trainer's YAML with the most TrainingArguments.

    Frameworks with one YAML for all their parts write them one level down, such as
    ``training: {bf16: true}``. The ds_config is not searched.
    """
    blocks = [
        block for key, block in container.items() if key not in EMBEDDING_KEYS and is_block(block)
    ]
    blocks = [block for block in blocks if count_distinctive(_blocks_of(block)) < 2]
    none: dict[str, Any] = {}
    return max(blocks, key=lambda block: len(trainer_arguments(block)), default=none)


def _blocks_of(entries: Mapping[str, Any]) -> list[str]:
    """Return the keys of the entries that are blocks, as most in a ds_config are."""
    return [key for key, value in entries.items() if is_block(value)]


def trainer_arguments(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Trainer's arguments in a trainer's YAML, by their TrainingArguments names."""
    arguments: dict[str, Any] = {}
    for written, value in container.items():
        name = ALIASES.get(written, written)
        known = name in TAKEN or name in FORMER or name == "max_length"
        if known and name != "deepspeed" and value is not None and value != "auto":
            arguments[name] = _number(value)
    return arguments


def _number(value: Any) -> Any:
    """Convert numbers such as 1e-4, which YAML 1.1 reads as strings."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value

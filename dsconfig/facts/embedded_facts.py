"""Facts that stand beside a config: in the YAML of accelerate or of a trainer around it.

accelerate's file says how many processes there are, and their precision. A trainer's file holds
the fields of TrainingArguments, some under names of its own: LLaMA-Factory and ms-swift take them
as they are, axolotl renames the batch, and each has its own word for the length of a sequence.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsconfig.facts import accelerate_config, parallelism
from dsconfig.facts.facts import Facts
from dsconfig.facts.inputs import FactError
from dsconfig.facts.trainer_fields import FORMER, TAKEN
from dsconfig.facts.training import training
from dsconfig.source import plugin_settings
from dsconfig.source.document import Document

OWN_NAMES: Mapping[str, str] = {
    "micro_batch_size": "per_device_train_batch_size",
    "num_epochs": "num_train_epochs",
    "sequence_len": "max_length",
    "cutoff_len": "max_length",
    "max_seq_length": "max_length",
    "max_length": "max_length",
}
"""What axolotl (the first three), LLaMA-Factory and others call an argument."""


def completed(facts: Facts, document: Document) -> Facts:
    """The facts with what the document's container says; what is given already wins."""
    container = document.container
    if not container:
        return facts
    try:
        name = document.named_in or document.name
        if is_accelerate_config(container):
            return facts if facts.launch else _with_launch(facts, container, name)
        return _with_arguments(facts, container, name)
    except FactError:  # a value of a wrong type, about which there is a rule, or another program's
        return facts


def is_accelerate_config(container: Mapping[str, Any]) -> bool:
    """Whether a YAML is one of ``accelerate config``."""
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
        **_degrees(facts, container),
        world_size=facts.world_size or launch.world_size,
        nodes=facts.nodes or launch.nodes,
        training=known,
        origins=origins,
    )


def _degrees(facts: Facts, container: Mapping[str, Any]) -> Mapping[str, int]:
    """The degrees of tensor and sequence parallelism that accelerate's YAML sets."""
    sizes = parallelism.degrees(container)
    if sizes is None:
        return {}
    own = {"tensor_parallel": "tp_size", "sequence_parallel": "sp_size"}
    return {name: sizes[size] for name, size in own.items() if getattr(facts, name) == 1}


def _with_arguments(facts: Facts, container: Mapping[str, Any], name: str) -> Facts:
    found = trainer_arguments(container)
    given = facts.training
    if not found or (given is not None and given.arguments):
        return facts
    said = training(found)
    if given is not None:
        own = {each: getattr(given, each) for each in given.__slots__ if each != "arguments"}
        said = replace(said, **{each: value for each, value in own.items() if value is not None})
    return replace(facts, training=said, origins={**facts.origins, "training": name})


def trainer_arguments(container: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the Trainer in a trainer's YAML, under their names in TrainingArguments."""
    found: dict[str, Any] = {}
    for written, value in container.items():
        name = OWN_NAMES.get(written, written)
        known = name in TAKEN or name in FORMER or name == "max_length"
        if known and name != "deepspeed" and value is not None and value != "auto":
            found[name] = _number(value)
    return found


def _number(value: Any) -> Any:
    """YAML 1.1 reads 1e-4 as a text; every trainer makes a number of it."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value

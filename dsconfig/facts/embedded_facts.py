"""Facts from the YAML file around a config: accelerate's, or a trainer's.

accelerate's file has the number of processes and their precision. A trainer's file has the
fields of TrainingArguments, some renamed: LLaMA-Factory and ms-swift use the original names,
axolotl renames the batch size, and each has its own name for the sequence length.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dsconfig.facts import accelerate_config, launches, parallelism
from dsconfig.facts.facts import Facts
from dsconfig.facts.inputs import FactError
from dsconfig.facts.trainer_fields import FORMER, TAKEN
from dsconfig.facts.training import TrainingFacts, training
from dsconfig.mesh import nodes_for
from dsconfig.source import arctic_config, option_configs, plugin_settings, reading
from dsconfig.source.document import LAUNCH, Document, Launcher, count_distinctive
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

OF_TRAINER = frozenset(
    (
        *("deepspeed", "output_dir", "num_train_epochs", "lr_scheduler_type"),
        *("per_device_train_batch_size", "per_device_eval_batch_size"),
        *("save_strategy", "eval_strategy"),
    )
)
"""TrainingArguments whose names no other program uses."""


def complete(facts: Facts, document: Document) -> Facts:
    """Return the facts, completed from the file around the ds_config; given facts win."""
    if not document.container and document.opened:
        return _with_replaced(facts, document.opened)
    container = document.container
    if not container:
        return facts
    name = document.named_in or document.name
    is_arctic = arctic_config.is_arctic(container)
    launch = None if is_arctic else launches.launch_of(document, facts)
    if launch is not None:
        facts = _with_launcher(launches.complete(facts, launch), document.launcher)
        if not is_accelerate_config(container):
            return facts
    facts = _with_ranks(facts, container.get(LAUNCH) or {}, name)
    facts = _with_launcher(facts, document.launcher)
    try:
        if is_accelerate_config(container):
            return facts if facts.launch else _with_launch(facts, container, name)
        if is_arctic:
            return _with_options(facts, _arctic_arguments(container))
        built = option_configs.built_config(container)
        if built is not None:
            facts = _with_ranks(facts, built.launch, name)
            return _with_options(facts, built.arguments)
        return _with_arguments(facts, container, name) if is_of_trainer(container) else facts
    except FactError:  # an invalid value, which a rule reports, or a file of another program
        return facts


def _with_launcher(facts: Facts, launcher: Launcher) -> Facts:
    """Return the facts with what a script passes to accelerate; given facts win."""
    facts = replace(
        facts,
        launch_options=facts.launch_options or launcher.options,
        launch_variables=facts.launch_variables or launcher.variables,
    )
    if facts.launch or not launcher.settings:
        return facts
    top = {name: n for name, n in launcher.options.items() if name in plugin_settings.TOP_LEVEL}
    try:
        found = _with_launch(facts, {**launcher.settings, **top}, launcher.file)
    except FactError:  # an invalid value, which a rule reports
        return facts
    return replace(found, launch=launcher.settings)


def _with_replaced(facts: Facts, file: str) -> Facts:
    """Return the facts with the settings of an accelerate YAML whose ds_config is replaced."""
    container = reading.read(file).container
    is_used = is_accelerate_config(container) and not facts.launch
    return _with_launch(facts, container, file) if is_used else facts


def _with_ranks(facts: Facts, launch: Mapping[str, int], name: str) -> Facts:
    """Return the facts with the ranks of the launcher in a script; given facts win."""
    ranks = launch.get("gpus")
    if facts.world_size is not None or ranks is None:
        return facts
    nodes = facts.nodes or launch.get("nodes") or nodes_for(ranks)
    return replace(
        facts, world_size=ranks, nodes=nodes, origins={**facts.origins, "world_size": name}
    )


def is_accelerate_config(container: Mapping[str, Any]) -> bool:
    """Return whether a YAML file was written by ``accelerate config``."""
    is_text = isinstance(container.get("deepspeed_config"), str)
    block = None if is_text else plugin_settings.block_of(container)
    return plugin_settings.is_accelerate_config(container, block)


def is_of_trainer(container: Mapping[str, Any]) -> bool:
    """Return whether the Trainer reads a file: it has arguments that no other program has.

    Other programs pass a ``deepspeed_config`` to ``deepspeed.initialize`` themselves.
    """
    blocks = (container, *_blocks_below(container))
    return any(not OF_TRAINER.isdisjoint(block) for block in blocks)


def _with_launch(facts: Facts, container: Mapping[str, Any], name: str) -> Facts:
    launch = accelerate_config.launch(container)
    known, origins = facts.training, {**facts.origins, "launch": name}
    if launch.precision is not None and (known is None or known.precision is None):
        known = replace(known or training({}), precision=launch.precision)
        origins["precision"] = name
    return replace(
        facts,
        launch=dict(container),
        degrees=parallelism.with_sizes(facts.degrees, container, None, None, origins),
        world_size=facts.world_size or launch.world_size,
        nodes=facts.nodes or launch.nodes,
        training=known,
        origins=origins,
    )


def _arctic_arguments(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sequence length and kernels of ArcticTraining's YAML."""
    model = container["model"]
    return {
        "gradient_checkpointing": not model.get("disable_activation_checkpoint", False),
        "attn_implementation": model.get("attn_implementation", "sdpa"),
        "use_liger_kernel": model.get("type") == "liger",
        "max_length": container["data"].get("max_length"),
    }


def _with_options(facts: Facts, options: Mapping[str, Any]) -> Facts:
    """Return the facts with options of a program that passes the ds_config on itself."""
    known = facts.training or TrainingFacts()
    arguments = {name: value for name, value in options.items() if name != "max_length"}
    length = options.get("max_length")
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
    nested = _nested_arguments(container)
    arguments = {**trainer_arguments(nested), **trainer_arguments(container)}
    flags = facts.training
    if not arguments or (flags is not None and flags.arguments):
        return facts
    for field, argument in _STATED_AS.items():
        if getattr(flags, field, None) is not None:
            arguments[argument] = getattr(flags, field)
    merged = training(arguments)
    if flags is not None:
        own = {field: getattr(flags, field) for field in flags.__slots__ if field != "arguments"}
        merged = replace(
            merged, **{field: value for field, value in own.items() if value is not None}
        )
    return replace(facts, training=merged, origins={**facts.origins, "training": name})


_STATED_AS = {
    "micro_batch_size": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""Fields that flags state, and the arguments that they replace."""


def _nested_arguments(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the block of a trainer's YAML with the most TrainingArguments.

    Frameworks with one YAML for all their parts write them in a block of it, such as
    ``training: {args: {bf16: true}}``. The ds_config is not searched.
    """
    none: dict[str, Any] = {}
    blocks = _blocks_below(container)
    return max(blocks, key=lambda block: len(trainer_arguments(block)), default=none)


def _blocks_below(container: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return the blocks of a YAML, outermost first, without a ds_config and its blocks."""
    waiting = [container]
    for outer in waiting:
        inner = [
            block for key, block in outer.items() if key not in EMBEDDING_KEYS and is_block(block)
        ]
        inner = [block for block in inner if count_distinctive(_blocks_of(block)) < 2]
        yield from inner
        waiting += inner


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

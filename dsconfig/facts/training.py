"""Facts about the training run, from TrainingArguments or flags."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from dsconfig.facts.inputs import LARGEST_SIZE, FactError
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath
from dsconfig.source.plain import shown
from dsconfig.source.pointer import value_at

ARGUMENT = "training_args"
ASSUMED = "assumed"
"""Origins of precision and accumulation: a flag, and an assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """Facts about the training run, named as in Hugging Face's TrainingArguments.

    ``arguments`` contains every argument, including those without a field here.
    """

    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    sequence_length: int | None = None
    learning_rate: float | None = None
    adam_betas: tuple[float, float] | None = None
    adam_epsilon: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None
    warmup_steps: float | None = None
    total_steps: int | None = None
    precision: str | None = None
    """``fp32``, ``fp16`` or ``bf16``."""
    master_weights: str | None = None
    """The copy of bf16 weights that the optimizer updates, for estimates; None: as in the config.

    ``fp32``; ``bf16``, with bf16 states; ``none``: weights, gradients and states are bf16, as in
    torchtune.
    """
    arguments: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    execution: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Kernels and recomputation that are stated apart from ``arguments``, under the same names."""


GATHERED_AS: Mapping[str, str] = MappingProxyType(
    {
        "micro_batch_size": "micro_batch",
        "global_batch_size": "global_batch",
        "gradient_accumulation_steps": "accumulation",
        "sequence_length": "seq_len",
        "precision": "precision",
        "master_weights": "master_weights",
        "learning_rate": "learning_rate",
        "total_steps": "total_steps",
        "warmup_steps": "warmup_steps",
    }
)
"""Fields of TrainingFacts and the arguments of ``gather`` that set them."""

# Defaults of TrainingArguments 5.23 that end up in a ds_config.
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "learning_rate": 5e-5,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "warmup_steps": 0,
        "fp16": False,
        "bf16": False,
        "fp16_full_eval": False,
        "bf16_full_eval": False,
        "auto_find_batch_size": False,
        "save_on_each_node": False,
    }
)
NAMES_OF: Mapping[KeyPath, tuple[str, ...]] = MappingProxyType(
    {
        paths.MICRO_BATCH: ("per_device_train_batch_size",),
        paths.ACCUMULATION: ("gradient_accumulation_steps",),
        paths.GLOBAL_BATCH: ("per_device_train_batch_size", "gradient_accumulation_steps"),
        paths.GRADIENT_CLIPPING: ("max_grad_norm",),
        paths.LEARNING_RATE: ("learning_rate",),
        paths.OPTIMIZER_PARAMS / "betas": ("adam_beta1", "adam_beta2"),
        paths.OPTIMIZER_PARAMS / "eps": ("adam_epsilon",),
        paths.OPTIMIZER_PARAMS / "weight_decay": ("weight_decay",),
        paths.MAX_LR: ("learning_rate",),
        paths.WARMUP_STEPS: ("warmup_steps", "warmup_ratio"),
        paths.TOTAL_STEPS: ("max_steps",),
        paths.FP16_ENABLED: ("fp16", "fp16_full_eval"),
        paths.BF16_ENABLED: ("bf16", "bf16_full_eval"),
    }
)
"""Keys of a ds_config and the TrainingArguments with the same meaning."""


def arguments_for(config: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Return the non-default TrainingArguments that agree with a ds_config."""
    arguments: dict[str, Any] = {}
    for key, names in NAMES_OF.items():
        value = _number_at(config, key)
        if value is not None and key not in (paths.GLOBAL_BATCH, paths.TOTAL_STEPS):
            values = cast("list[Any]", value) if isinstance(value, list) else [value]
            arguments.update(zip(names, values, strict=False))
    total = _number_at(config, paths.GLOBAL_BATCH)
    micro, steps = NAMES_OF[paths.GLOBAL_BATCH]
    is_open = {name: name not in arguments for name in (micro, steps)}
    for name, other in ((micro, steps), (steps, micro)):
        given = arguments.get(other, 1)
        if is_open[name] and isinstance(total, int) and isinstance(given, int) and given > 0:
            share, left = divmod(total, ranks * given)
            if share and not left:  # else no size agrees, and the program reports it
                arguments[name] = share
    return {name: value for name, value in arguments.items() if value != DEFAULTS.get(name)}


def total_steps_of(config: Mapping[str, Any]) -> int | None:
    """Return the number of steps of the schedule in a ds_config, if it is a number."""
    steps = _number_at(config, paths.TOTAL_STEPS)
    return steps if type(steps) is int and steps > 0 else None


def _number_at(config: object, path: KeyPath) -> Any:
    """Return the number, bool or list at a path, or None."""
    value = value_at(config, path, None)
    return None if isinstance(value, str | dict) else value


_COUNTS = ("per_device_train_batch_size", "gradient_accumulation_steps", "max_steps")
NUMBERS = (
    "learning_rate",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "weight_decay",
    "max_grad_norm",
    "warmup_steps",
    "warmup_ratio",
)
"""Fractional arguments of an optimizer or its schedule."""


OF_SCRIPTS = frozenset(("max_seq_length", "max_length", "num_training_steps"))
"""Arguments read here that are fields of the classes of scripts and trainers."""


def training(arguments: Mapping[str, Any]) -> TrainingFacts:
    """Return facts from TrainingArguments. Raises FactError for values of the wrong type."""
    _check(arguments)
    if arguments.get("activation_checkpointing") is True:  # the name in newer releases
        arguments = {"gradient_checkpointing": True, **arguments}
    values = {**DEFAULTS, **arguments}
    steps = values.get("num_training_steps") or values.get("max_steps")
    return TrainingFacts(
        # A default does not decide the batch size; only given values count.
        micro_batch_size=arguments.get("per_device_train_batch_size"),
        gradient_accumulation_steps=arguments.get("gradient_accumulation_steps"),
        sequence_length=values.get("max_seq_length") or values.get("max_length"),
        learning_rate=values["learning_rate"],
        adam_betas=(values["adam_beta1"], values["adam_beta2"]),
        adam_epsilon=values["adam_epsilon"],
        weight_decay=values["weight_decay"],
        max_grad_norm=values["max_grad_norm"],
        warmup_steps=values["warmup_steps"] or values.get("warmup_ratio") or 0,
        total_steps=steps if isinstance(steps, int) and steps > 0 else None,
        precision=_precision(arguments),
        arguments=MappingProxyType(dict(arguments)),
    )


def execution_of(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return kernels and recomputation, as stated to ``gather``, by TrainingArgument."""
    kernel = {"flash": "flash_attention_2", "eager": "eager"}.get(stated["attention"])
    found = {
        "gradient_checkpointing": {"none": False, "full": True}.get(
            stated["recompute"], stated["recompute"]
        ),
        "attn_implementation": kernel,
        "use_liger_kernel": stated["fused_kernels"] or None,
        "loss": stated["loss"],
    }
    return {name: value for name, value in found.items() if value is not None}


def _precision(arguments: Mapping[str, Any]) -> str | None:
    """Return None if no flag is given: a default does not decide the precision."""
    for dtype in ("bf16", "fp16"):
        if arguments.get(dtype) or arguments.get(f"{dtype}_full_eval"):
            return dtype
    return "fp32" if "bf16" in arguments or "fp16" in arguments else None


def _check(arguments: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        value = arguments.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise FactError(ARGUMENT, f"{name} is {shown(value)}; it must be an integer")
        if abs(value) > LARGEST_SIZE:
            raise FactError(ARGUMENT, f"{name} is {shown(value)}; it must be below 2^63")
    for name in NUMBERS:
        value = arguments.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise FactError(
                ARGUMENT, f"{name} is {shown(value)}; write it as a number, without quotes"
            )

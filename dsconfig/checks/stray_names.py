"""Names from elsewhere that stand in files: what they mean there, and where that is set."""

from collections.abc import Mapping
from typing import NamedTuple

from dsconfig.checks.context import Context
from dsconfig.checks.rule import Path
from dsconfig.lazy_imports import lazy_imports
from dsconfig.runtimes.read_config import ZERO

with lazy_imports():
    from dsconfig.facts import trainer_fields, training
    from dsconfig.source import plugin_settings


class Called(NamedTuple):
    """What a name that no release ever read stands for.

    ``new`` is None where a plain rename would not keep the meaning.
    """

    new: Path | None
    advice: str


def _called(new: str, advice: str | None = None) -> Called:
    path = tuple(new.split("."))
    return Called(path, f"write {advice}" if advice else f'write "{path[-1]}"')


NEVER_READ: Mapping[Path, Called] = {
    (*ZERO, "cpu_offload_pin_memory"): Called(
        None, 'write "pin_memory" in offload_param or offload_optimizer'
    ),
    (*ZERO, "reduce_scatter_bucket_size"): _called("zero_optimization.reduce_bucket_size"),
    ("lr_scheduler",): _called("scheduler"),
    ("max_grad_norm",): _called("gradient_clipping"),
    ("zero_stage",): _called("zero_optimization.stage", '"zero_optimization": {"stage": ...}'),
    ("gradient_accumulation_dtype",): _called(
        "data_types.grad_accum_dtype", '"data_types": {"grad_accum_dtype": ...}'
    ),
    ("bf16", "check_overflow"): _called("bf16.check_grad_overflow"),
}
"""Names that are handed around, and that no release ever read."""


def called(config: Context, path: Path) -> Called | None:
    """What a name that is handed around stands for, if this release has that."""
    found = NEVER_READ.get(path)
    if found is None or found.new is None:
        return found
    known = config.key_at(found.new)
    return found if known is not None and known.read_at(config.version) else None


def is_script_setting(path: Path) -> bool:
    """Whether a name at the top level is one that scripts and trainers have for their own use."""
    return len(path) == 1 and path[0] in OF_SCRIPTS


def of_another_place(path: Path) -> str | None:
    """Where a name belongs that people write at the top level though it is an argument's."""
    name, *inner = path
    if inner:
        return None
    if name == "gradient_checkpointing":
        return "set it in TrainingArguments, or call model.gradient_checkpointing_enable()"
    if name in BY_HABIT:
        return f"write {BY_HABIT[name]}"
    keys = [key for key, names in training.NAMES_OF.items() if name in names]
    if keys and name not in keys:
        return f"it is a name of TrainingArguments; in a ds_config write {' or '.join(keys)}"
    if name in (*trainer_fields.TAKEN, *trainer_fields.FORMER):
        return "it is a name of TrainingArguments: set it there, DeepSpeed has no such setting"
    if name in plugin_settings.KNOWN:
        return "it is a line of deepspeed_config in accelerate's YAML, or an argument of its plugin"
    if name in OF_SCRIPTS:
        return "it is the script's own setting: pass it to the script, DeepSpeed has none of it"
    return None


BY_HABIT = {
    "batch_size": "train_micro_batch_size_per_gpu (of a GPU) or train_batch_size (of a step)",
    "micro_batch_size": "train_micro_batch_size_per_gpu (of a GPU and a micro step)",
    "global_batch_size": "train_batch_size (of all GPUs and a step)",
    "warmup_steps": '"scheduler": {"params": {"warmup_num_steps": ...}}',
    "lr": '"optimizer": {"params": {"lr": ...}}',
    "mixed_precision": '"bf16": {"enabled": true}',
}
"""What other programs call a setting."""

OF_SCRIPTS = frozenset(
    (
        "seed",
        "epochs",
        "num_epochs",
        "micro_batch_size",
        "global_batch_size",
        "buffer_size",
        "num_workers",
        "pin_memory",
        "hidden_size",
        "num_layers",
        "model_type",
        "max_tokens",
        "verbose",
        "debug",
        "device",
        "dtype",
        "mode",
        "metric",
        "profile",
        "project",
        "group",
        "team",
        "names",
        "classes",
        "steps_per_epoch",
        "total_steps",
        "max_steps",
        "patience",
    )
)
"""Names that stand somewhere in a ds_config, too, and mean nothing of it where a script's settings
have strayed into the file: a seed at the top level is not that of the data sampler."""

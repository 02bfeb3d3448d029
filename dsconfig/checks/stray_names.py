"""Names from other programs found in configs, and where to set what they mean."""

from collections.abc import Mapping
from typing import NamedTuple

from dsconfig.checks.context import Context
from dsconfig.lazy_imports import lazy_imports
from dsconfig.schema import paths
from dsconfig.schema.paths import KeyPath

with lazy_imports():
    from dsconfig.facts import trainer_fields, training
    from dsconfig.source import plugin_settings


class CommonMistake(NamedTuple):
    """Replacement of a name that no release ever read.

    ``new`` is None if a plain rename would change the meaning.
    """

    new: KeyPath | None
    advice: str


def _mistake(new: KeyPath, advice: str | None = None) -> CommonMistake:
    return CommonMistake(new, f"write {advice}" if advice else f'write "{new.name}"')


NEVER_READ: Mapping[KeyPath, CommonMistake] = {
    paths.ZERO / "cpu_offload_pin_memory": CommonMistake(
        None, 'write "pin_memory" in offload_param or offload_optimizer'
    ),
    paths.ZERO / "reduce_scatter_bucket_size": _mistake(paths.REDUCE_BUCKET),
    paths.ROOT / "lr_scheduler": _mistake(paths.SCHEDULER),
    paths.ROOT / "max_grad_norm": _mistake(paths.GRADIENT_CLIPPING),
    paths.ROOT / "zero_stage": _mistake(paths.STAGE, '"zero_optimization": {"stage": ...}'),
    paths.ROOT / "gradient_accumulation_dtype": _mistake(
        paths.GRAD_ACCUM_DTYPE, '"data_types": {"grad_accum_dtype": ...}'
    ),
    paths.BF16 / "check_overflow": _mistake(paths.BF16 / "check_grad_overflow"),
}
"""Common names that no release ever read."""


def common_mistake(config: Context, path: KeyPath) -> CommonMistake | None:
    """Return the replacement of a common wrong name, if this release reads it."""
    mistake = NEVER_READ.get(path)
    if mistake is None or mistake.new is None:
        return mistake
    known = config.key_at(mistake.new)
    return mistake if known is not None and known.read_at(config.version) else None


def is_script_setting(path: KeyPath) -> bool:
    """Return whether a top-level name is a common setting of scripts and trainers."""
    return len(path) == 1 and path[0] in SCRIPT_SETTINGS


def foreign_name_help(path: KeyPath) -> str | None:
    """Return where to set a top-level name that belongs to another program."""
    name, *inner = path
    if inner:
        return None
    if name == "gradient_checkpointing":
        return "set it in TrainingArguments, or call model.gradient_checkpointing_enable()"
    if name in FOREIGN_NAMES:
        return f"write {FOREIGN_NAMES[name]}"
    keys = [key.dotted for key, names in training.NAMES_OF.items() if name in names]
    if keys and name not in keys:
        return f"it is a TrainingArgument; in a ds_config, write {' or '.join(keys)}"
    if name in (*trainer_fields.TAKEN, *trainer_fields.FORMER):
        return "it is a TrainingArgument: set it there, DeepSpeed has no such setting"
    if name in plugin_settings.KNOWN:
        return "it is a setting of deepspeed_config in accelerate's YAML, or of its plugin"
    if name in SCRIPT_SETTINGS:
        return "it is a setting of the script: pass it to the script, DeepSpeed does not read it"
    return None


FOREIGN_NAMES = {
    "batch_size": "train_micro_batch_size_per_gpu (per GPU) or train_batch_size (per step)",
    "micro_batch_size": "train_micro_batch_size_per_gpu (per GPU and micro step)",
    "global_batch_size": "train_batch_size (all GPUs, per step)",
    "warmup_steps": '"scheduler": {"params": {"warmup_num_steps": ...}}',
    "lr": '"optimizer": {"params": {"lr": ...}}',
    "mixed_precision": '"bf16": {"enabled": true}',
}
"""Names of settings in other programs."""

SCRIPT_SETTINGS = frozenset(
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
"""Settings of scripts whose names also exist in some block of a ds_config. At the top level they
are not suggested to be misplaced: a ``seed`` there is not the data sampler's."""

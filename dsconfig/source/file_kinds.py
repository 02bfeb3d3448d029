"""Detection, by their keys, of files that are not a ds_config."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from dsconfig.source.document import count_distinctive

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
"""Suffixes of shell scripts."""


class FileKind(NamedTuple):
    """Kind of file with at least ``least`` of the keys in ``marks``."""

    name: str
    marks: frozenset[str]
    least: int
    help: str
    with_zero: bool = False
    """Whether it may also contain ds_config keys."""
    argument: str = ""
    """The fact that the file states; ``help`` then says with what."""

    def advice(self, named: Callable[[str], str]) -> str:
        """Return what to do with the file; ``named`` gives the name of a fact."""
        given = f"pass it as {named(self.argument)}" if self.argument else ""
        return ", ".join(filter(None, (given, self.help)))


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


ARGUMENTS = FileKind(
    "a file of TrainingArguments",
    _names(
        "output_dir per_device_train_batch_size per_device_eval_batch_size "
        "num_train_epochs lr_scheduler_type logging_steps save_steps save_strategy "
        "eval_strategy model_name_or_path gradient_checkpointing learning_rate max_steps"
    ),
    2,
    "together with the ds_config named by its `deepspeed` key",
    argument="training_args",
)
LAUNCH = FileKind(
    "an accelerate config",
    frozenset({"compute_environment", "distributed_type", "num_processes", "num_machines"}),
    2,
    "together with the ds_config",
    argument="accelerate_config",
)
PLAN = FileKind(
    "a plan",
    frozenset({"format_version", "digest", "mesh", "effective", "coverage", "traffic"}),
    4,
    "show it with `dsconfig plan FILE`, run it with `dsconfig run FILE`",
    with_zero=True,
)
KINDS = (
    PLAN,
    FileKind(
        "a JSON Schema",
        frozenset({"$defs", "definitions", "properties", "additionalProperties", "$id"}),
        2,
        "validate the config that refers to it",
    ),
    FileKind(
        "a GPT-NeoX config",
        _names(
            "num_layers hidden_size num_attention_heads pipe_parallel_size "
            "model_parallel_size pos_emb train_iters lr_decay_iters vocab_file data_impl"
        ),
        3,
        "GPT-NeoX extracts the ds_config from it; validate the config that it logs",
        with_zero=True,
    ),
    FileKind(
        "a Megatron config",
        _names(
            "tensor_model_parallel_size pipeline_model_parallel_size micro_batch_size "
            "global_batch_size ffn_hidden_size num_query_groups train_iters"
        ),
        3,
        "validate the file passed as --deepspeed_config",
        with_zero=True,
    ),
    FileKind(
        "a model config",
        frozenset({"model_type", "architectures", "hidden_size", "vocab_size"}),
        3,
        "",
        argument="model",
    ),
    ARGUMENTS,
    LAUNCH,
)


UNRELATED = FileKind(
    "a file of another program",
    frozenset(),
    0,
    "none of its keys resembles a ds_config key: pass the ds_config",
)


def another_kind(config: Mapping[str, object]) -> FileKind | None:
    """Return the kind of a file that is not a ds_config, or None."""
    names = {name.replace("-", "_") for name in config} | {*config}
    has_own = has_own_keys(config)
    for kind in KINDS:
        marks = len(names & kind.marks)
        if marks >= kind.least and (kind.with_zero or not has_own):
            return kind
    return None


_SHARED = frozenset({"gradient_accumulation_steps", "bf16", "fp16"})
"""Keys of a ds_config that TrainingArguments have too."""


def has_own_keys(config: Mapping[str, object]) -> bool:
    """Return whether a file has keys that only a ds_config has."""
    names = {name.replace("-", "_") for name in config}
    return count_distinctive(config) > len(_SHARED & names)

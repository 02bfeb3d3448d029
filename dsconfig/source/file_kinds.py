"""Files that are no ds_config though somebody hands them over as one: told by what they hold."""

from collections.abc import Mapping
from typing import NamedTuple

from dsconfig.source.document import count_distinctive


class FileKind(NamedTuple):
    """``marks`` are names that such a file has, ``least`` of them at once."""

    name: str
    marks: frozenset[str]
    least: int
    help: str
    with_zero: bool = False
    """Whether it may hold keys of a ds_config beside its own."""


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
    "give it to --training-args beside the ds_config that its deepspeed names",
)
LAUNCH = FileKind(
    "an accelerate config",
    frozenset({"compute_environment", "distributed_type", "num_processes", "num_machines"}),
    2,
    "give it to --accelerate-config beside the ds_config",
)
KINDS = (
    FileKind(
        "a JSON Schema",
        frozenset({"$defs", "definitions", "properties", "additionalProperties", "$id"}),
        2,
        "an editor reads it; validate the config that names it",
    ),
    FileKind(
        "a GPT-NeoX config",
        _names(
            "num_layers hidden_size num_attention_heads pipe_parallel_size "
            "model_parallel_size pos_emb train_iters lr_decay_iters vocab_file data_impl"
        ),
        3,
        "GPT-NeoX splits it and hands DeepSpeed its part; validate the part that it logs",
        with_zero=True,
    ),
    FileKind(
        "a Megatron config",
        _names(
            "tensor_model_parallel_size pipeline_model_parallel_size micro_batch_size "
            "global_batch_size ffn_hidden_size num_query_groups train_iters"
        ),
        3,
        "validate the file that --deepspeed_config names",
        with_zero=True,
    ),
    FileKind(
        "the config of a model",
        frozenset({"model_type", "architectures", "hidden_size", "vocab_size"}),
        3,
        "give it to --model",
    ),
    ARGUMENTS,
    LAUNCH,
)


UNRELATED = FileKind(
    "a file of some other program",
    frozenset(),
    0,
    "no key of it is one of a ds_config, or like one: name the file that is",
)


def another_kind(config: Mapping[str, object]) -> FileKind | None:
    """What a file is that is no ds_config; None for one that may be one."""
    names = {name.replace("-", "_") for name in config} | {*config}
    own = count_distinctive(config)
    for kind in KINDS:
        marks = len(names & kind.marks)
        shared = own - len({"gradient_accumulation_steps", "bf16", "fp16"} & names)
        if marks >= kind.least and (kind.with_zero or not shared):
            return kind
    return None

"""Diagnostics of the resolver by code: description, effect, help and example.

The docstring of each function is the page of its code: the description, then ``help:`` and, if
flags are enough to show it, a config (``bad:``) and the ``flags:`` with which ``dsconfig resolve``
reports it.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from dsconfig.docstrings import docstring
from dsconfig.report import Effect


class Code(NamedTuple):
    """Content of a page. ``example`` is a config and its flags; None if it requires more."""

    name: str
    effect: Effect
    doc: str
    remedy: str
    example: tuple[str, str] | None
    also: tuple[Effect, ...] = ()


Page = Callable[[], None]
CODES: dict[str, Code] = {}
_LABEL = re.compile(r"^(help|bad|flags):", re.MULTILINE)


def _code(
    code: str, name: str, effect: Effect, *, also: tuple[Effect, ...] = ()
) -> Callable[[Page], Page]:
    def register(page: Page) -> Page:
        doc, *parts = (" ".join(part.split()) for part in _LABEL.split(docstring(page)))
        labels = dict(zip(parts[::2], parts[1::2], strict=True))
        example = (labels["bad"], labels["flags"]) if "bad" in labels else None
        CODES[code] = Code(name, effect, doc, labels["help"], example, also)
        return page

    return register


@_code("DSC150", "missing-fact", Effect.REFUSED)
def missing_fact() -> None:
    """A value is "auto" and depends on a fact that is not specified: the number of ranks, the
    model, the GPU, the sequence length. dsconfig does not guess it, so the config is not
    resolved.

    help: Specify the flag named in the help, or write the value.
    bad: {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    flags: --gpus 8 --runtime dsengine
    """


@_code("DSC151", "not-a-config", Effect.REFUSED)
def not_a_config() -> None:
    """The file does not contain an object of keys and values, so there is nothing to resolve.

    help: Specify the file with the config; `dsconfig validate` reports what this one contains.
    """


@_code("DSC152", "no-rule-for-auto", Effect.REFUSED)
def no_rule_for_auto() -> None:
    """ "auto" is set for a key that has neither a rule nor a default. No program replaces it
    either.

    help: Write a value, or delete the key.
    bad: {"train_batch_size": 8, "data_parallel_size": "auto"}
    flags: --gpus 8 --runtime dsengine
    """


@_code("DSC153", "host-memory-unknown", Effect.NOTE)
def host_memory_unknown() -> None:
    """Optimizer states or parameters are offloaded to host memory, but the host memory per node
    is not specified, so it was not checked. A job that exceeds host memory is killed by the
    operating system, usually without a message.

    help: Specify --host-memory, for example 512GiB.
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": "auto",
        "offload_optimizer": {"device": "cpu"}}}
    flags: --params 1e9 --gpus 2 --device a100-40gb --seq-len 2048 --runtime dsengine
    """


@_code("DSC154", "nothing-fits", Effect.REFUSED)
def nothing_fits() -> None:
    """No stage and offload device that the config leaves open fits a micro batch of 1, or none is
    compatible with the values the config sets. The message names the closest choice and how much
    GPU, host or NVMe memory it exceeds.

    help: Follow the suggestion in the help: more ranks, another GPU, "auto" for fixed values,
        activation checkpointing, or --nvme.
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": "auto"}}
    flags: --params 400e9 --gpus 1 --device v100-16gb --seq-len 2048 --runtime dsengine
    """


@_code("DSC155", "tight-fit", Effect.NOTE)
def tight_fit() -> None:
    """No micro batch leaves 5% of GPU memory free beside what the allocator caches; the error of
    the estimate is about as large. The largest one that needs no more memory than the smallest is
    used. The run may go out of memory later, when the allocator's memory is fragmented.

    help: Run some steps; if it runs out of memory, use more GPUs, a higher stage or offloading.
    """


@_code("DSC250", "batch-type", Effect.REFUSED)
def batch_type() -> None:
    """A batch key (train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps)
    is not a positive integer.

    help: Write an integer without quotes.
    bad: {"train_batch_size": "8"}
    flags: --gpus 8 --runtime dsengine
    """


@_code("DSC251", "batch-contradiction", Effect.REFUSED)
def batch_contradiction() -> None:
    """train_batch_size = micro batch x accumulation x data-parallel ranks does not hold, or
    cannot hold with the given values. Data-parallel ranks are the GPUs divided by the tensor,
    sequence and pipeline degrees. DeepSpeed raises an error as well.

    help: Use one of the global batches named in the help, or set one of the three to "auto".
    bad: {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}
    flags: --gpus 2 --runtime dsengine
    """


@_code("DSC252", "micro-batch-does-not-fit", Effect.REFUSED)
def micro_batch_does_not_fit() -> None:
    """Even the smallest micro batch that divides the global batch exceeds GPU memory with the
    stage and offload devices set in the config.

    help: Write "auto" for stage and offload devices, or follow the suggestion in the help.
    bad: {"train_batch_size": 8, "train_micro_batch_size_per_gpu": "auto", "zero_optimization":
        {"stage": 1}}
    flags: --model llama-2-70b --gpus 8 --device a100-80gb --seq-len 2048 --runtime dsengine
    """


@_code("DSC350", "bf16-model-in-fp16", Effect.NOTE)
def bf16_model_in_fp16() -> None:
    """The GPU does not support bf16, so a model trained in bf16 runs in fp16, whose largest
    number is 65504. Activations may overflow, which causes skipped steps while the loss scale
    falls to its minimum.

    help: Use a GPU with bf16 (a100, h100, l4 ...), or train in fp32.
    bad: {"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": "auto"}}
    flags: --model llama-2-7b --gpus 8 --device v100-32gb --runtime dsengine
    """


@_code("DSC750", "auto-dropped", Effect.ALTERED)
def auto_dropped() -> None:
    """DeepSpeed removes "auto" values from its validated blocks before it reads them, and
    silently uses the default of the key.

    help: Write a value, or train with the output of `dsconfig resolve --runtime dsengine`.
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": "auto"}}
    flags: --gpus 8 --runtime deepspeed
    """


@_code("DSC751", "micro-batch-from-eval-loader", Effect.ALTERED)
def micro_batch_from_eval_loader() -> None:
    """accelerate uses the smallest batch size of all data loaders passed to prepare as the
    training micro batch, even if it is that of the evaluation loader.

    help: Write train_micro_batch_size_per_gpu in the config, or prepare the evaluation loader
        separately.
    """


@_code("DSC752", "total-steps-divided", Effect.ALTERED)
def total_steps_divided() -> None:
    """accelerate divides the total steps of a schedule by the number of processes but not the
    warmup, so the warmup takes a larger fraction of the run than requested.

    help: Write total_num_steps in the config, in optimizer steps.
    bad: {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage":
        2}, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
        "warmup_num_steps": 10}}}
    flags: --gpus 8 --runtime accelerate --total-steps 1000
    """


@_code("DSC753", "precision-switched-off", Effect.ALTERED)
def precision_switched_off() -> None:
    """mixed_precision requests a half precision that the config disables. The config takes
    precedence: the model trains in fp32, slower and with more memory.

    help: Set `enabled` of the block to true or "auto".
    bad: {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage":
        2}, "bf16": {"enabled": false}}
    flags: --gpus 8 --runtime accelerate --precision bf16
    """


@_code("DSC754", "trainer-dtype-split", Effect.ALTERED)
def trainer_dtype_split() -> None:
    """The config has no block for the half precision requested by TrainingArguments. The Trainer
    records fp32 before accelerate adds the block, so floating-point inputs reach the
    half-precision model in fp32.

    help: Add the block with "enabled": "auto".
    bad: {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    flags: --gpus 8 --runtime transformers --precision bf16
    """


@_code("DSC755", "clipping-not-carried", Effect.ALTERED)
def clipping_not_carried() -> None:
    """max_grad_norm reaches DeepSpeed only through gradient_clipping. Without that key DeepSpeed
    uses its own default: 1.0 since 0.19.3, no clipping before.

    help: Write "gradient_clipping": "auto".
    """


@_code("DSC756", "accumulation-overruled", Effect.ALTERED)
def accumulation_overruled() -> None:
    """DeepSpeed gets a different number of accumulation steps than the run requests, which
    changes the global batch.

    help: Write "gradient_accumulation_steps": "auto".
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 2}}
    flags: --gpus 8 --runtime accelerate --accumulation 4
    """


@_code("DSC757", "auto-left-in", Effect.ALTERED)
def auto_left_in() -> None:
    """The program passes "auto" on in the config. The consequence depends on the key and is part
    of the message: a default, a truthy switch, or an error (then the effect is `refused`).

    help: Write a value, or train with the output of `dsconfig resolve --runtime dsengine`.
    bad: {"train_micro_batch_size_per_gpu": 1, "activation_checkpointing": {"partition_activations":
        "auto"}}
    flags: --gpus 8 --runtime deepspeed
    """


@_code("DSC758", "files-disagree", Effect.INERT, also=(Effect.ALTERED, Effect.REFUSED))
def files_disagree() -> None:
    """The config, TrainingArguments and the accelerate config set different values. The message
    states which one the program uses. `altered` if it is not the config's.

    help: Keep one of the two. Where the program fills in "auto", write "auto" in the config.
    """


@_code("DSC761", "deepspeed-stops", Effect.REFUSED)
def deepspeed_stops() -> None:
    """transformers or accelerate fill in the config and pass it to DeepSpeed, which raises this
    error.

    help: Fix the key named in the message, or train with the output of `dsconfig resolve
        --runtime dsengine`.
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 7}}
    flags: --gpus 8 --runtime accelerate
    """


@_code("DSC762", "not-in-this-engine", Effect.REFUSED)
def not_in_this_engine() -> None:
    """dsengine does not implement this DeepSpeed feature and refuses to plan with it:
    ZenFlow, DataStates, GPUDirect Storage and others, from the same table as `plan`. `validate`
    reports it if dsengine is the only target and there is no earlier error.

    help: Follow the suggestion in the message, or train with DeepSpeed.
    """


@_code("DSC760", "program-stops", Effect.REFUSED)
def program_stops() -> None:
    """The target program raises this error with this config and these facts. The message is the
    program's own, shortened.

    help: Fix the key named in the message, or train with the output of `dsconfig resolve
        --runtime dsengine`.
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "overlap_comm":
        "auto"}}
    flags: --gpus 8 --runtime accelerate
    """

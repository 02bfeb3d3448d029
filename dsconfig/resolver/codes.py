"""Every finding of the resolver by its code: what it is about, what it leads to, what to do.

Each function is the page of one. What it is about stands first in the docstring, then what to do
(``help:``), and, where flags are enough, a config that has it (``bad:``) with the ``flags:`` under
which ``dsconfig resolve`` finds it there.
"""

import re
from collections.abc import Callable
from inspect import cleandoc
from typing import NamedTuple

from dsconfig.report import Effect


class Code(NamedTuple):
    """What a page says. ``example`` is a config with its flags, None where it takes more."""

    name: str
    effect: Effect
    doc: str
    remedy: str
    example: tuple[str, str] | None


Page = Callable[[], None]
CODES: dict[str, Code] = {}
_LABEL = re.compile(r"^(help|bad|flags):", re.MULTILINE)


def _code(code: str, name: str, effect: Effect) -> Callable[[Page], Page]:
    def register(page: Page) -> Page:
        doc, *parts = (
            " ".join(part.split()) for part in _LABEL.split(cleandoc(page.__doc__ or ""))
        )
        told = dict(zip(parts[::2], parts[1::2], strict=True))
        example = (told["bad"], told["flags"]) if "bad" in told else None
        CODES[code] = Code(name, effect, doc, told["help"], example)
        return page

    return register


@_code("DSC150", "missing-fact", Effect.REFUSED)
def missing_fact() -> None:
    """A value is "auto" and depends on something nobody said: the number of ranks, the model, the
    card, the length of a sample. Nothing is guessed in its place, so the config is not resolved.

    help: Give the flag that the help names, or write the value.
    bad: {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    flags: --gpus 8
    """


@_code("DSC151", "not-a-config", Effect.REFUSED)
def not_a_config() -> None:
    """The file holds no object of keys and values, so there is nothing to resolve.

    help: Name the file with the config; `dsconfig validate` says what this one holds.
    """


@_code("DSC152", "no-rule-for-auto", Effect.REFUSED)
def no_rule_for_auto() -> None:
    """ "auto" stands at a key that has neither a rule nor a default. No program has a value for it
    either.

    help: Write the value you want, or remove the key.
    bad: {"train_batch_size": 8, "sequence_parallel_size": "auto"}
    flags: --gpus 8
    """


@_code("DSC153", "host-memory-unknown", Effect.NOTE)
def host_memory_unknown() -> None:
    """States are moved to main memory, and how much of it a node has was not said. Whether they fit
    there was not checked; a job that does not fit is killed by the system, mostly without a
    message.

    help: Give --host-memory, for example 512GiB.
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": "auto",
        "offload_optimizer": {"device": "cpu"}}}
    flags: --params 1e9 --gpus 2 --device a100-40gb --seq-len 2048
    """


@_code("DSC154", "nothing-fits", Effect.REFUSED)
def nothing_fits() -> None:
    """None of the stages and offload targets that the config leaves open holds a micro batch of 1,
    or none goes with what the config fixes. The message names the choice that comes nearest, and
    what it lacks: device, host or NVMe.

    help: Take the way out that the help names: more ranks, another card, "auto" for what the config
        fixes, activations recomputed, or --nvme.
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": "auto"}}
    flags: --params 400e9 --gpus 1 --device v100-16gb --seq-len 2048
    """


@_code("DSC155", "tight-fit", Effect.NOTE)
def tight_fit() -> None:
    """The micro batch fits with less than 5 % of the device to spare, which is about the error of
    the estimate. It may run out of memory after a while, when the allocator's memory is fragmented.

    help: Try it for some steps; should it run out of memory, write the next smaller micro batch.
    """


@_code("DSC250", "batch-type", Effect.REFUSED)
def batch_type() -> None:
    """A member of the batch triple (train_batch_size, train_micro_batch_size_per_gpu,
    gradient_accumulation_steps) is not an integer above zero. Texts and fractions are refused as
    types and never used in arithmetic.

    help: Write a bare integer, without quotes.
    bad: {"train_batch_size": "8"}
    flags: --gpus 8
    """


@_code("DSC251", "batch-contradiction", Effect.REFUSED)
def batch_contradiction() -> None:
    """train_batch_size = micro batch x accumulation x data-parallel ranks does not hold, or cannot
    with the numbers that are fixed. Data-parallel ranks are the GPUs divided by the tensor,
    sequence and pipeline degrees. DeepSpeed stops at the same place.

    help: Take one of the global batches that the help names, or set one of the three to "auto".
    bad: {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}
    flags: --gpus 2
    """


@_code("DSC252", "micro-batch-does-not-fit", Effect.REFUSED)
def micro_batch_does_not_fit() -> None:
    """Not even the smallest micro batch that divides the global batch fits the device, with the
    stage and the offload targets that the config fixes.

    help: Write "auto" for the stage and the offload devices, or follow the help.
    bad: {"train_batch_size": 8, "train_micro_batch_size_per_gpu": "auto", "zero_optimization":
        {"stage": 1}}
    flags: --model llama-2-70b --gpus 8 --device a100-80gb --seq-len 2048
    """


@_code("DSC350", "bf16-model-in-fp16", Effect.NOTE)
def bf16_model_in_fp16() -> None:
    """The device has no bf16, so a model trained in bf16 runs in fp16, whose largest number is
    65504: activations may overflow, which shows as skipped steps while the loss scale falls to its
    minimum.

    help: Use a device with bf16 (a100, h100, l4 ...), or train in fp32.
    bad: {"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": "auto"}}
    flags: --model llama-2-7b --gpus 8 --device v100-32gb
    """


@_code("DSC750", "auto-dropped", Effect.ALTERED)
def auto_dropped() -> None:
    """DeepSpeed removes "auto" from its checked blocks before it reads them, and goes on with the
    default of the key without a word.

    help: Write the value, or train with the output of `dsconfig resolve`.
    bad: {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": "auto"}}
    flags: --gpus 8 --runtime deepspeed
    """


@_code("DSC751", "micro-batch-from-eval-loader", Effect.ALTERED)
def micro_batch_from_eval_loader() -> None:
    """accelerate takes the smallest batch size of all loaders passed to prepare as the micro batch
    of training, also where that is the evaluation loader's.

    help: Write train_micro_batch_size_per_gpu in the config, or prepare the evaluation loader by
        itself.
    """


@_code("DSC752", "total-steps-divided", Effect.ALTERED)
def total_steps_divided() -> None:
    """accelerate divides the total steps of a schedule by the number of processes and leaves the
    warmup whole, so the rise takes a larger share of the run than was asked for.

    help: Write total_num_steps in the config, in optimizer steps.
    bad: {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage":
        2}, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
        "warmup_num_steps": 10}}}
    flags: --gpus 8 --runtime accelerate --total-steps 1000
    """


@_code("DSC753", "precision-switched-off", Effect.ALTERED)
def precision_switched_off() -> None:
    """mixed_precision asks for a half precision that the config switches off. The config wins: the
    model trains in fp32, slower and in more memory.

    help: Set the block's enabled to true or "auto".
    bad: {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage":
        2}, "bf16": {"enabled": false}}
    flags: --gpus 8 --runtime accelerate --precision bf16
    """


@_code("DSC754", "trainer-dtype-split", Effect.ALTERED)
def trainer_dtype_split() -> None:
    """The config has no block for the half precision that TrainingArguments ask for. The Trainer
    records fp32 before accelerate adds the block, so float inputs reach a half-precision model in
    fp32.

    help: Write the block with "enabled": "auto".
    bad: {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    flags: --gpus 8 --runtime transformers --precision bf16
    """


@_code("DSC755", "clipping-not-carried", Effect.ALTERED)
def clipping_not_carried() -> None:
    """max_grad_norm reaches DeepSpeed only through the key gradient_clipping. Without it DeepSpeed
    clips at its own default: 1.0 since 0.19.3, not at all before.

    help: Write "gradient_clipping": "auto".
    """


@_code("DSC756", "accumulation-overruled", Effect.ALTERED)
def accumulation_overruled() -> None:
    """DeepSpeed is told another number of accumulation steps than the run asks for, so the global
    batch is another, too.

    help: Write "gradient_accumulation_steps": "auto".
    bad: {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 2}}
    flags: --gpus 8 --runtime accelerate --accumulation 4
    """


@_code("DSC757", "auto-left-in", Effect.ALTERED)
def auto_left_in() -> None:
    """The program leaves "auto" in the config it hands on. What becomes of the text depends on the
    key, and the message says it: a default, a switch that counts as on, or a stop (then the effect
    is `refused`).

    help: Write the value, or train with the output of `dsconfig resolve`.
    bad: {"train_micro_batch_size_per_gpu": 1, "activation_checkpointing": {"partition_activations":
        "auto"}}
    flags: --gpus 8 --runtime deepspeed
    """


@_code("DSC758", "files-disagree", Effect.INERT)
def files_disagree() -> None:
    """The config, TrainingArguments and the accelerate config say different things about one
    setting. Which of them the program follows stands in the message.

    help: Say it in one place: write "auto" in the config and keep the value in the other file.
    """


@_code("DSC761", "deepspeed-stops", Effect.REFUSED)
def deepspeed_stops() -> None:
    """transformers or accelerate fill in their part of the config and hand it to DeepSpeed, which
    raises this error.

    help: Mend the key that is named, or train with the output of `dsconfig resolve`.
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 7}}
    flags: --gpus 8 --runtime accelerate
    """


@_code("DSC762", "not-in-this-engine", Effect.REFUSED)
def not_in_this_engine() -> None:
    """dsengine does not have this feature of DeepSpeed, and makes no plan with it: tensor
    parallelism, ZenFlow, DeepCompile and others, by the same table as `plan`. Told by `validate`
    where dsengine is asked about alone and no other finding stops it before.

    help: Follow the remedy that is named, or train with DeepSpeed.
    """


@_code("DSC760", "program-stops", Effect.REFUSED)
def program_stops() -> None:
    """The chosen program raises this error with this file and these facts. The message is its own,
    shortened.

    help: Mend the key that is named, or train with the output of `dsconfig resolve`.
    bad: {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "overlap_comm":
        "auto"}}
    flags: --gpus 8 --runtime accelerate
    """

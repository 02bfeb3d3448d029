"""Every finding of the resolver by its code: what it is about, what it leads to, what to do."""

from collections.abc import Mapping
from typing import NamedTuple

from dsconfig.report import Effect


class Code(NamedTuple):
    """``example`` is a config with the flags under which ``dsconfig resolve`` finds this in it;
    None where it takes more than flags."""

    name: str
    effect: Effect
    doc: str
    remedy: str
    example: tuple[str, str] | None = None


CODES: Mapping[str, Code] = {
    "DSC150": Code(
        "missing-fact",
        Effect.REFUSED,
        'A value is "auto" and depends on something nobody said: the number of ranks, the model, '
        "the card, the length of a sample. Nothing is guessed in its place, so the config is not "
        "resolved.",
        "Give the flag that the help names, or write the value.",
        ('{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}', "--gpus 8"),
    ),
    "DSC151": Code(
        "not-a-config",
        Effect.REFUSED,
        "The file holds no object of keys and values, so there is nothing to resolve.",
        "Name the file with the config; `dsconfig validate` says what this one holds.",
    ),
    "DSC152": Code(
        "no-rule-for-auto",
        Effect.REFUSED,
        '"auto" stands at a key that has neither a rule nor a default. No program has a value for '
        "it either.",
        "Write the value you want, or remove the key.",
        ('{"train_batch_size": 8, "sequence_parallel_size": "auto"}', "--gpus 8"),
    ),
    "DSC153": Code(
        "host-memory-unknown",
        Effect.NOTE,
        "States are moved to main memory, and how much of it a node has was not said. Whether "
        "they fit there was not checked; a job that does not fit is killed by the system, "
        "mostly without a message.",
        "Give --host-memory, for example 512GiB.",
        (
            '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": "auto", '
            '"offload_optimizer": {"device": "cpu"}}}',
            "--params 1e9 --gpus 2 --device a100-40gb --seq-len 2048",
        ),
    ),
    "DSC154": Code(
        "nothing-fits",
        Effect.REFUSED,
        "None of the stages and offload targets that the config leaves open holds a micro batch "
        "of 1, or none goes with what the config fixes. The message names the choice that comes "
        "nearest, and what it lacks: device, host or NVMe.",
        'Take the way out that the help names: more ranks, another card, "auto" for what the '
        "config fixes, activations recomputed, or --nvme.",
        (
            '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": "auto"}}',
            "--params 400e9 --gpus 1 --device v100-16gb --seq-len 2048",
        ),
    ),
    "DSC155": Code(
        "tight-fit",
        Effect.NOTE,
        "The micro batch fits with less than 5 % of the device to spare, which is about the error "
        "of the estimate. It may run out of memory after a while, when the allocator's memory is "
        "fragmented.",
        "Try it for some steps; should it run out of memory, write the next smaller micro batch.",
    ),
    "DSC250": Code(
        "batch-type",
        Effect.REFUSED,
        "A member of the batch triple (train_batch_size, train_micro_batch_size_per_gpu, "
        "gradient_accumulation_steps) is not an integer above zero. Texts and fractions are "
        "refused as types and never used in arithmetic.",
        "Write a bare integer, without quotes.",
        ('{"train_batch_size": "8"}', "--gpus 8"),
    ),
    "DSC251": Code(
        "batch-contradiction",
        Effect.REFUSED,
        "train_batch_size = micro batch x accumulation x data-parallel ranks does not hold, or "
        "cannot with the numbers that are fixed. Data-parallel ranks are the GPUs divided by the "
        "tensor, sequence and pipeline degrees. DeepSpeed stops at the same place.",
        'Take one of the global batches that the help names, or set one of the three to "auto".',
        ('{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}', "--gpus 2"),
    ),
    "DSC252": Code(
        "micro-batch-does-not-fit",
        Effect.REFUSED,
        "Not even the smallest micro batch that divides the global batch fits the device, with "
        "the stage and the offload targets that the config fixes.",
        'Write "auto" for the stage and the offload devices, or follow the help.',
        (
            '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": "auto", '
            '"zero_optimization": {"stage": 1}}',
            "--model llama-2-70b --gpus 8 --device a100-80gb --seq-len 2048",
        ),
    ),
    "DSC350": Code(
        "bf16-model-in-fp16",
        Effect.NOTE,
        "The device has no bf16, so a model trained in bf16 runs in fp16, whose largest number is "
        "65504: activations may overflow, which shows as skipped steps while the loss scale "
        "falls to its minimum.",
        "Use a device with bf16 (a100, h100, l4 ...), or train in fp32.",
        (
            '{"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": "auto"}}',
            "--model llama-2-7b --gpus 8 --device v100-32gb",
        ),
    ),
    "DSC750": Code(
        "auto-dropped",
        Effect.ALTERED,
        'DeepSpeed removes "auto" from its checked blocks before it reads them, and goes on with '
        "the default of the key without a word.",
        "Write the value, or train with the output of `dsconfig resolve`.",
        (
            '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": "auto"}}',
            "--gpus 8 --runtime deepspeed",
        ),
    ),
    "DSC751": Code(
        "micro-batch-from-eval-loader",
        Effect.ALTERED,
        "accelerate takes the smallest batch size of all loaders passed to prepare as the micro "
        "batch of training, also where that is the evaluation loader's.",
        "Write train_micro_batch_size_per_gpu in the config, or prepare the evaluation loader by "
        "itself.",
    ),
    "DSC752": Code(
        "total-steps-divided",
        Effect.ALTERED,
        "accelerate divides the total steps of a schedule by the number of processes and leaves "
        "the warmup whole, so the rise takes a larger share of the run than was asked for.",
        "Write total_num_steps in the config, in optimizer steps.",
        (
            '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "zero_optimization": '
            '{"stage": 2}, "scheduler": {"type": "WarmupDecayLR", "params": '
            '{"total_num_steps": "auto", "warmup_num_steps": 10}}}',
            "--gpus 8 --runtime accelerate --total-steps 1000",
        ),
    ),
    "DSC753": Code(
        "precision-switched-off",
        Effect.ALTERED,
        "mixed_precision asks for a half precision that the config switches off. The config wins: "
        "the model trains in fp32, slower and in more memory.",
        'Set the block\'s enabled to true or "auto".',
        (
            '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "zero_optimization": '
            '{"stage": 2}, "bf16": {"enabled": false}}',
            "--gpus 8 --runtime accelerate --precision bf16",
        ),
    ),
    "DSC754": Code(
        "trainer-dtype-split",
        Effect.ALTERED,
        "The config has no block for the half precision that TrainingArguments ask for. The "
        "Trainer records fp32 before accelerate adds the block, so float inputs reach a "
        "half-precision model in fp32.",
        'Write the block with "enabled": "auto".',
        (
            '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}',
            "--gpus 8 --runtime transformers --precision bf16",
        ),
    ),
    "DSC755": Code(
        "clipping-not-carried",
        Effect.ALTERED,
        "max_grad_norm reaches DeepSpeed only through the key gradient_clipping. Without it "
        "DeepSpeed clips at its own default: 1.0 since 0.19.3, not at all before.",
        'Write "gradient_clipping": "auto".',
    ),
    "DSC756": Code(
        "accumulation-overruled",
        Effect.ALTERED,
        "DeepSpeed is told another number of accumulation steps than the run asks for, so the "
        "global batch is another, too.",
        'Write "gradient_accumulation_steps": "auto".',
        (
            '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, '
            '"zero_optimization": {"stage": 2}}',
            "--gpus 8 --runtime accelerate --accumulation 4",
        ),
    ),
    "DSC757": Code(
        "auto-left-in",
        Effect.ALTERED,
        'The program leaves "auto" in the config it hands on. What becomes of the text depends on '
        "the key, and the message says it: a default, a switch that counts as on, or a stop (then "
        "the effect is `refused`).",
        "Write the value, or train with the output of `dsconfig resolve`.",
        (
            '{"train_micro_batch_size_per_gpu": 1, "activation_checkpointing": '
            '{"partition_activations": "auto"}}',
            "--gpus 8 --runtime deepspeed",
        ),
    ),
    "DSC758": Code(
        "files-disagree",
        Effect.INERT,
        "The config, TrainingArguments and the accelerate config say different things about one "
        "setting. Which of them the program follows stands in the message.",
        'Say it in one place: write "auto" in the config and keep the value in the other file.',
    ),
    "DSC761": Code(
        "deepspeed-stops",
        Effect.REFUSED,
        "transformers or accelerate fill in their part of the config and hand it to DeepSpeed, "
        "which raises this error.",
        "Mend the key that is named, or train with the output of `dsconfig resolve`.",
        (
            '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 7}}',
            "--gpus 8 --runtime accelerate",
        ),
    ),
    "DSC762": Code(
        "not-in-this-engine",
        Effect.REFUSED,
        "dsengine does not have this feature of DeepSpeed, and makes no plan with it: tensor "
        "parallelism, ZenFlow, DeepCompile and others, by the same table as `plan`. Told by "
        "`validate` where dsengine is asked about alone and no other finding stops it before.",
        "Follow the remedy that is named, or train with DeepSpeed.",
    ),
    "DSC760": Code(
        "program-stops",
        Effect.REFUSED,
        "The chosen program raises this error with this file and these facts. The message is "
        "its own, shortened.",
        "Mend the key that is named, or train with the output of `dsconfig resolve`.",
        (
            '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, '
            '"overlap_comm": "auto"}}',
            "--gpus 8 --runtime accelerate",
        ),
    ),
}

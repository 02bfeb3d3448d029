"""Every finding of the resolver by its code: its name, and what it is about."""

from collections.abc import Mapping
from typing import NamedTuple


class Code(NamedTuple):
    name: str
    doc: str


CODES: Mapping[str, Code] = {
    "DSC150": Code(
        "missing-fact",
        'A value is "auto" and depends on something nobody said. The help names the flag that '
        "settles it. Nothing is guessed in its place.",
    ),
    "DSC151": Code("not-a-config", "The file holds no object of keys and values."),
    "DSC152": Code(
        "no-rule-for-auto",
        '"auto" stands at a key that has neither a rule nor a default; write the value.',
    ),
    "DSC153": Code(
        "host-memory-unknown",
        "States are moved to main memory, and how much of it a node has was not said.",
    ),
    "DSC154": Code(
        "nothing-fits",
        "None of the stages and offload targets that the config allows holds one sample. The "
        "help names the quickest choice that would.",
    ),
    "DSC155": Code(
        "tight-fit",
        "The micro batch fits with less than 5 % of the device to spare, which is about the "
        "error of the estimate.",
    ),
    "DSC250": Code(
        "batch-type",
        "A member of the batch triple is not an integer above zero. Strings and fractions are "
        "refused as types and never used in arithmetic.",
    ),
    "DSC251": Code(
        "batch-contradiction",
        "global batch = micro batch x accumulation x data-parallel ranks does not hold, or "
        "cannot. The help names the nearest global batches that divide.",
    ),
    "DSC252": Code(
        "micro-batch-does-not-fit",
        "Not even the smallest micro batch that divides the global batch fits the device.",
    ),
    "DSC350": Code(
        "bf16-model-in-fp16",
        "The device has no bf16, so a model trained in bf16 runs in fp16, whose range is "
        "smaller: activations may overflow.",
    ),
    "DSC750": Code(
        "auto-dropped",
        'DeepSpeed removes "auto" from its checked blocks before it reads them, and goes on '
        "with its default.",
    ),
    "DSC751": Code(
        "micro-batch-from-eval-loader",
        "accelerate takes the smallest batch size of all loaders passed to prepare, also where "
        "that is the evaluation loader's.",
    ),
    "DSC752": Code(
        "total-steps-divided",
        "accelerate divides the steps of a schedule by the number of processes, not its warmup.",
    ),
    "DSC753": Code(
        "precision-switched-off",
        "mixed_precision asks for a half precision that the config switches off; the config wins.",
    ),
    "DSC754": Code(
        "trainer-dtype-split",
        "The Trainer recorded fp32 before accelerate switched a half precision on: float inputs "
        "reach the model in fp32.",
    ),
    "DSC755": Code(
        "clipping-not-carried",
        "max_grad_norm reaches DeepSpeed only through gradient_clipping; without the key "
        "DeepSpeed clips at its own default.",
    ),
    "DSC756": Code(
        "accumulation-overruled",
        "DeepSpeed is told another number of accumulation steps than the run asks for.",
    ),
    "DSC757": Code(
        "auto-left-in",
        'The program leaves "auto" in the config it hands on.',
    ),
    "DSC758": Code(
        "files-disagree",
        "The config, TrainingArguments and the accelerate config say different things about one "
        "setting. Which of them holds depends on the program.",
    ),
    "DSC760": Code(
        "program-stops",
        "The chosen program raises this error with this file and these facts.",
    ),
}

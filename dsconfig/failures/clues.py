"""Phrases that identify the setup of a run: stage, model kind, program."""

from collections.abc import Mapping

CLUES: Mapping[str, tuple[str, ...]] = {
    "stage 3": (
        '"stage": 3',
        "zero_optimization_stage ...... 3",
        "zero/stage3.py",
        "zero/partition_parameters.py",
        "partitioned_param_coordinator.py",
        "zero/parameter_offload.py",
        "ZeRO stage 3",
        "ZeRO-3",
        "Zero-3",
        "zero3",
        "ds_z3",
        "zero_stage: 3",
        "zero_stage 3",
        "stage3_",
    ),
    "stage 2": (
        '"stage": 2',
        "zero_optimization_stage ...... 2",
        "zero2",
        "ds_z2",
        "ZeRO stage 2",
        "ZeRO-2",
        "zero_stage: 2",
        "zero_stage 2",
    ),
    "DeepSpeed": ("deepspeed", "DeepSpeed", "ds_accelerator", "zero_optimization"),
    "MoE": (
        "MoeBlock",
        "SparseMoe",
        "MoE",
        "ixtral",
        "_moe",
        "-A3B",
        "-a3b",
        "deepseek_v2",
        "deepseek_v3",
    ),
    "LoRA": ("peft/", "LoraConfig", "lora_", "finetuning_type lora", "train_type lora", "LoRA"),
    "recomputation": ("gradient_checkpointing", "utils/checkpoint.py"),
    "several modalities": ("vision", "image", "pixel_values", "audio", "_vl", "VL-"),
    "loading": ("Loading checkpoint shards", "from_pretrained", "Loading weights"),
    "generation": ("generation/utils.py", ".generate("),
}
"""Phrases by clue; each occurs in what programs print, not only in arguments."""

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "llamafactory": ("llamafactory", "LLaMA-Factory", "llmtuner"),
    "axolotl": ("axolotl",),
    "swift": ("ms-swift", "/swift/", "swift sft"),
    "verl": ("/verl/",),
    "openrlhf": ("openrlhf",),
    "trl": ("/trl/",),
    "dsengine": ("/dsengine/",),
    "transformers": ("transformers/trainer.py", "[INFO|trainer.py", "transformers/integrations"),
    "accelerate": ("accelerate/accelerator.py", "accelerate/commands/launch.py"),
    "deepspeed": ("deepspeed/", "DeepSpeed info", "[launch.py:", "[runner.py:"),
}
"""Phrases by program, the outermost program first."""

SPEAKS: Mapping[str, tuple[str, ...]] = {
    "llamafactory": ("llamafactory", "transformers"),
    "axolotl": ("axolotl", "transformers"),
    "swift": ("swift", "transformers"),
    "verl": ("verl", "deepspeed"),
    "openrlhf": ("openrlhf", "deepspeed"),
    "trl": ("trl", "transformers"),
    "transformers": ("transformers",),
    "accelerate": ("accelerate",),
    "deepspeed": ("deepspeed",),
    "dsengine": ("dsengine",),
}
"""Keys of ``Signature.remedies`` that apply to a program, the most specific first."""

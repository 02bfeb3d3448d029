"""Random project folders: a model's config.json, a ds_config, and launcher files.

A case starts them in one of three ways: ``trainer`` (a script that reads args.yaml into
TrainingArguments, which name ds.json), ``launched trainer`` (the same under ``accelerate launch``,
whose YAML has the config) and ``accelerate`` (a script with its own Accelerator).
"""

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtimes.mutations import COMPLETE, mutated, place

TRAINER, LAUNCHED, ACCELERATE = "trainer", "launched trainer", "accelerate"
CONFIG, MODEL, ARGUMENTS, LAUNCH = "ds.json", "config.json", "args.yaml", "accelerate.yaml"
BATCH, LEARNING_RATE, WEIGHT_DECAY, WARMUP, STEPS = 4, 1e-3, 0.01, 10, 1001
"""Values in the code of the ``accelerate`` script."""


@dataclass(frozen=True, slots=True)
class Launch:
    """``files``: contents by name. ``processes``: number on all nodes."""

    id: str
    road: str
    processes: int
    files: dict[str, str]

    def write(self, folder: Path) -> None:
        for name, text in self.files.items():
            (folder / name).write_text(text, "utf-8")

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def launches(count: int, seed: int) -> Iterator[Launch]:
    generator = random.Random(seed)
    for number in range(count):
        yield launch(f"{seed}-{number}", generator)


def launch(id: str, generator: random.Random) -> Launch:
    road = generator.choice((TRAINER, LAUNCHED, ACCELERATE))
    processes = generator.choice((1, 2, 8))
    files = {MODEL: json.dumps(generator.choice(MODELS))}
    names_file = road == TRAINER or generator.random() < 0.5
    if names_file:
        files[CONFIG] = config_text(generator)
    if road != ACCELERATE:
        files[ARGUMENTS] = arguments_text(generator, CONFIG if road == TRAINER else None)
    if road != TRAINER:
        files[LAUNCH] = launch_text(generator, processes, CONFIG if names_file else None)
    return Launch(id, road, processes, files)


MODELS: tuple[dict[str, Any], ...] = (
    {"model_type": "gpt2", "n_embd": 96, "n_layer": 1, "n_head": 2},
    {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2},
    {"model_type": "llama"},
    {"model_type": "mistral", "hidden_size": 64},
    {"model_type": "qwen2", "hidden_size": 112, "torch_dtype": "bfloat16"},
    {"model_type": "t5", "d_model": 48},
    {"model_type": "whisper", "d_model": 32},
    {"model_type": "bart", "d_model": 80},
    {"model_type": "segformer", "hidden_sizes": [16, 64, 32, 8]},
    {"model_type": "vit", "hidden_size": 24},
    {"model_type": "clip", "text_config": {"hidden_size": 40}},
    {"model_type": "llava", "text_config": {"model_type": "llama", "hidden_size": 96}},
    {"model_type": "gemma3", "text_config": {"hidden_size": 72}},
    {"model_type": "falcon", "hidden_size": 128, "num_attention_heads": 4},
    {"model_type": "opt", "hidden_size": 64, "word_embed_proj_dim": 32},
    {"model_type": "mamba", "hidden_size": 88},
    {"model_type": "xlnet", "d_model": 64, "n_head": 4},
    {"model_type": "ctrl", "n_embd": 64},
    {"model_type": "efficientnet"},
)


def config_text(generator: random.Random) -> str:
    config = mutated(generator) if generator.random() < 0.5 else copy.deepcopy(COMPLETE)
    if generator.random() < 0.5:
        place(config, "zero_optimization.stage")["stage"] = 3
    if generator.random() < 0.3:  # fewer programs fill in a scheduler
        config.pop("scheduler", None)
    if generator.random() < 0.2:
        config.pop("optimizer", None)
    text = json.dumps(config, indent=generator.choice((None, 2, 4)))
    return generator.choice(SLIPS)(text) if generator.random() < 0.1 else text


SLIPS = (
    lambda text: "// of the team\n" + text,
    lambda text: text[:-1] + ', "steps_per_print": 1e2}',
    lambda text: text[:-1] + ",}",
    lambda text: text[:-1] + ', "gradient_clipping": 0.5, "gradient_clipping": "auto"}',
    lambda text: "\ufeff" + text,
    lambda text: text[:-1],
)


def arguments_text(generator: random.Random, config: str | None) -> str:
    """Return a YAML file of TrainingArguments with common orders and spellings."""
    lines = ["output_dir: out", "report_to: none", "disable_tqdm: true"]
    if config is not None:
        lines.append(f"deepspeed: {config}")
    for choices in ARGUMENT_LINES:
        line = generator.choice(choices)
        if line:
            lines.append(line)
    if generator.random() < 0.1:
        lines.append(generator.choice(FORMER_LINES))
    return "\n".join(lines) + "\n"


ARGUMENT_LINES: tuple[tuple[str, ...], ...] = (
    ("max_steps: 1000", "max_steps: 1000", "max_steps: 10"),
    ("", "per_device_train_batch_size: 4", "per_device_train_batch_size: 1"),
    ("", "gradient_accumulation_steps: 2", "gradient_accumulation_steps: 4"),
    ("", "learning_rate: 1.0e-4", "learning_rate: 5.0e-05"),
    ("", "", "adam_beta2: 0.95", "adam_beta1: 0.8"),
    ("", "", "adam_epsilon: 1.0e-6"),
    ("", "", "weight_decay: 0.1", "weight_decay: 0"),
    ("", "max_grad_norm: 0.5", "max_grad_norm: 1", "max_grad_norm: 0"),
    ("", "warmup_steps: 5", "warmup_steps: 0.1", "warmup_steps: 100"),
    ("", "bf16: true", "fp16: true", "bf16: yes", "bf16: false", "bf16_full_eval: true"),
    ("", "", "", "save_on_each_node: true", "auto_find_batch_size: true"),
    ("", "", "", "lr_scheduler_type: cosine", "seed: 3"),
)
FORMER_LINES = (
    "evaluation_strategy: 'no'",
    "warmup_ratio: 0.1",
    "learning_rat: 1.0e-4",
    "overwrite_output_dir: true",
    "no_cuda: false",
)


def launch_text(generator: random.Random, processes: int, config: str | None) -> str:
    """Return a YAML file of ``accelerate config`` with inline settings or a file name."""
    lines = ["compute_environment: LOCAL_MACHINE", "distributed_type: DEEPSPEED"]
    lines += [f"num_processes: {processes}", "num_machines: 1", "machine_rank: 0"]
    lines += [generator.choice(choices) for choices in LAUNCH_LINES]
    if config is None or generator.random() < 0.1:  # accelerate refuses it with a file
        lines.append(generator.choice(PRECISION_LINES))
    block = [f"  deepspeed_config_file: {config}"] if config else []
    if config is None or generator.random() < 0.1:
        block += [f"  {generator.choice(choices)}" for choices in PLUGIN_LINES]
    block = [line for line in block if line.strip()]
    if block:
        lines += ["deepspeed_config:", *block]
    return "\n".join(filter(None, lines)) + "\n"


PRECISION_LINES = (
    *("", "", "mixed_precision: bf16", "mixed_precision: 'no'", "mixed_precision: no"),
    "mixed_precision: fp16",
)
LAUNCH_LINES: tuple[tuple[str, ...], ...] = (
    ("", "", "debug: false", "use_cpu: false", "main_training_function: main"),
    ("",) * 30 + ("mixed_precisio: bf16",),
)
PLUGIN_LINES: tuple[tuple[str, ...], ...] = (
    (
        "",
        "zero_stage: two",
        *("zero_stage: '3'", "zero_stage: 1", "zero_stage: 2", "zero_stage: 3") * 3,
    ),
    ("", "", *("gradient_accumulation_steps: 4",) * 4, "gradient_accumulation_steps: auto"),
    ("", "", "gradient_clipping: 1.0", "gradient_clipping: 0", "gradient_clipping: auto"),
    ("", "", "offload_optimizer_device: cpu", "offload_optimizer_device: none"),
    ("", "", "offload_param_device: cpu", "offload_param_device: nvme"),
    ("", "", "offload_param_nvme_path: /nv", "offload_optimizer_nvme_path: /nv"),
    ("", "zero3_save_16bit_model: true", "zero3_save_16bit_model: 'True'", "zero3_init_flag: true"),
    ("",) * 8 + ("zero_stge: 3",),
)

"""Usual training scripts with TRL."""

import json
import sys
from pathlib import Path
from typing import Any

import trl
from datasets import Dataset
from transformers import AutoTokenizer

from frameworks.files import names_of

WORDS = ("a small model", "many large steps", "the last word", "one more try", "two cards", "rain")


def length_of(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text) % 7) for text in completions]


def sft(model: str, settings: dict[str, Any], tokenizer: Any) -> Any:
    samples = Dataset.from_list([{"text": f"{text}, {text}."} for text in WORDS])
    arguments = trl.SFTConfig(max_length=24, **settings)
    return trl.SFTTrainer(
        model=model, args=arguments, train_dataset=samples, processing_class=tokenizer
    )


def dpo(model: str, settings: dict[str, Any], tokenizer: Any) -> Any:
    pairs = [{"prompt": text, "chosen": " yes", "rejected": " never"} for text in WORDS]
    arguments = trl.DPOConfig(max_length=24, **settings)
    return trl.DPOTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer,
    )


def grpo(model: str, settings: dict[str, Any], tokenizer: Any) -> Any:
    prompts = Dataset.from_list([{"prompt": text} for text in WORDS])
    # Advantages cancel out in the loss; a large beta makes the divergence exceed rounding.
    sampling = {"num_generations": 2, "max_completion_length": 8, "beta": 1.0}
    settings = settings | {"learning_rate": 1e-2}
    return trl.GRPOTrainer(
        model=model,
        reward_funcs=length_of,
        args=trl.GRPOConfig(**sampling, **settings),
        train_dataset=prompts,
        processing_class=tokenizer,
    )


def main(kind: str, model: str, out: str, config: str, *flags: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "output_dir": out,
        "deepspeed": config,
        "max_steps": 3,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_steps": 3,
        "gradient_checkpointing": False,
        "bf16": "bf16" in flags,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
    }
    tokenizer = AutoTokenizer.from_pretrained(model)
    trainer = {"sft": sft, "dpo": dpo, "grpo": grpo}[kind](model, settings, tokenizer)
    trainer.train()
    steps = [step for step in trainer.state.log_history if "loss" in step]
    trainer.save_model(f"{out}/final")
    return {
        "losses": [step["loss"] for step in steps],
        "norms": [step["grad_norm"] for step in steps],
        "rewards": [step["reward"] for step in steps if "reward" in step],
        "lengths": [step["completions/mean_length"] for step in steps if "reward" in step],
        "files": names_of(Path(out)),
    }


if __name__ == "__main__":
    target, *rest = sys.argv[1:]
    Path(target).write_text(json.dumps(main(*rest)))

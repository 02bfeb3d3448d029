"""Remedies and tuned configs of dsconfig, applied with the real DeepSpeed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import command_line
from dsconfig.runtimes.base import CONFIG, SCRIPT, runtime_of
from dsconfig.source import read
from dsconfig.source.override import with_overrides
from frameworks.cases import TRAINER
from frameworks.running import result_of
from frameworks.tiny import save_model

pytestmark = [pytest.mark.live, pytest.mark.engine]

FILE: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "overlap_comm": True},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
}
REMEDIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "batch": (
        {"/train_micro_batch_size_per_gpu": 2, "/gradient_accumulation_steps": 4},
        {"micro": 2, "accumulation": 4},
    ),
    "offload": (
        {
            "/zero_optimization/stage": 3,
            "/zero_optimization/offload_optimizer": {"device": "cpu", "pin_memory": True},
            "/zero_optimization/offload_param": {"device": "cpu", "pin_memory": True},
        },
        {"stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
    ),
    "bucket": (
        {"/zero_optimization/reduce_bucket_size": 50_000_000},
        {"reduce_bucket_size": 50_000_000},
    ),
    "bf16": ({"/bf16/enabled": True}, {"bf16": True, "fp16": False}),
    "fp16": ({"/fp16/enabled": True}, {"bf16": False, "fp16": True}),
    "rate": ({"/optimizer/params/lr": 3e-4}, {"lr": 3e-4}),
}
"""Edits by pointer, and the settings that DeepSpeed must read."""
FIXED = FILE | {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
}


@pytest.mark.parametrize("config", [FILE, FIXED], ids=["auto", "fixed"])
def test_remedy_reaches_deepspeed(tmp_path: Path, config: dict[str, Any]) -> None:
    """Apply edits to the script, accelerate's settings and the file, as advised."""
    runtime, kinds, jobs = runtime_of("accelerate"), set[str](), list[Any]()
    for edits, _ in REMEDIES.values():
        steps = runtime.instructions(edits, config)
        kinds |= {step.where for step in steps}
        in_file = [step.text.replace(" = ", "=", 1) for step in steps if step.where == CONFIG]
        changed = with_overrides(read(config), in_file).value
        script = [step.text for step in steps if step.where == SCRIPT]
        settings = [step.text for step in steps if step.where not in (CONFIG, SCRIPT)]
        jobs.append((changed, script, "\n".join(settings)))
    listed = tmp_path / "jobs.json"
    listed.write_text(json.dumps(jobs))
    found = result_of("deepspeed", "advised", tmp_path, str(listed))
    for (name, (_, expected)), seen in zip(REMEDIES.items(), found, strict=True):
        assert seen | expected == seen, name
    assert kinds == {CONFIG, SCRIPT}


def test_tuned_config_trains(tmp_path: Path) -> None:
    """Use the written file and the advised arguments with the real DeepSpeed."""
    model, file = save_model(tmp_path / "model"), tmp_path / "ds.json"
    about = ["--model", str(model / "config.json"), "--gpus", "1", "--device", "h100"]
    batch = ["--seq-len", "12", "--micro-batch", "2", "--global-batch", "4"]
    run = ["--runtime", "transformers", "--precision", "bf16", "-o", str(file)]
    done = command_line.run("tune", *about, *batch, *run)
    assert done.returncode == 0, done.stderr
    output = " ".join((done.stdout + done.stderr).split())
    advice = re.search(r"Also set (.*?) in TrainingArguments", output)
    assert advice is not None, output
    named = [f"--{flag}" for flag in advice[1].split(", ")]
    assert {flag.partition("=")[0] for flag in named} >= {"--learning_rate", "--bf16"}
    usual = [flag for flag in TRAINER if not flag.startswith("--learning_rate")]
    out = ("--output_dir", str(tmp_path / "out"), "--deepspeed", str(file), "--use_cpu=true")
    result = result_of("deepspeed", "trainer", tmp_path, str(model), *out, *usual, *named)
    assert len(result["losses"]) == 6 and max(result["rates"]) == pytest.approx(1e-5)
    assert "model.safetensors" in result["saved"]

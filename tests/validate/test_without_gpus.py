"""The Trainer compares a config with its arguments; only the global batch size needs the ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

import command_line
import dsconfig
from validate.test_command import Run, put, run

__all__ = ["run"]

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "train_batch_size": 64,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
}
COMPARED = {
    "/train_micro_batch_size_per_gpu",
    "/gradient_accumulation_steps",
    "/gradient_clipping",
    "/bf16/enabled",
    "/optimizer/params/lr",
    "/optimizer/params/weight_decay",
}
AUTOS = {
    "train_micro_batch_size_per_gpu": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
}


@pytest.mark.parametrize("arguments", [{"num_train_epochs": 1}, {"logging_steps": 5}])
def test_comparison_without_gpus_finds_every_other_mismatch(arguments: dict[str, Any]) -> None:
    facts = dsconfig.gather(training_args=arguments)
    found = dsconfig.validate(CONFIG, facts, runtime="transformers").refusals
    assert {each.pointer for each in found} == COMPARED
    messages = {each.pointer: each.message for each in found}
    assert "lr" not in messages["/gradient_clipping"]  # each key has its part of the message
    resolved = dsconfig.resolve(CONFIG, facts, runtime="transformers").diagnostics
    assert {each.pointer for each in resolved if each.code != "DSC150"} == COMPARED


def test_matching_config_has_no_mismatch_without_gpus() -> None:
    arguments = {"per_device_train_batch_size": 2, "bf16": True, "max_grad_norm": 0.5}
    config = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": 2},
    }
    facts = dsconfig.gather(training_args=arguments)
    assert dsconfig.validate(config, facts, runtime="transformers").ok


def test_batch_size_that_needs_gpus_is_named(run: Run) -> None:
    put("ds.json", json.dumps({"train_batch_size": 64, "zero_optimization": {"stage": 2}}))
    put("args.json", '{"per_device_train_batch_size": 2}')
    line = "train_batch_size is not compared with TrainingArguments: specify --gpus"
    given = ("ds.json", "--training-args", "args.json")
    assert line in run(*given).err
    assert line not in run(*given, "--gpus", "32").err
    assert line not in run("ds.json").err


def test_differences_from_default_arguments_are_named(run: Run) -> None:
    config = {"gradient_clipping": 0.5, "train_batch_size": 8, "zero_optimization": {"stage": 2}}
    put("ds.json", json.dumps(config))
    result = run("ds.json", "--runtime", "transformers")
    expected = "gradient_clipping differs from the defaults of TrainingArguments: specify"
    assert expected in result.err and result.code == 0
    assert "defaults of" not in run("ds.json").err


@pytest.mark.parametrize("suffix", ["", "_full_eval"])
@pytest.mark.parametrize("gpus", [None, 1])
def test_both_precisions_are_one_error(suffix: str, gpus: int | None) -> None:
    arguments = {f"fp16{suffix}": True, f"bf16{suffix}": True}
    facts = dsconfig.gather(training_args=arguments, gpus=gpus)
    [found] = dsconfig.validate(AUTOS, facts, runtime="transformers").refusals
    assert found.code == "DSC707"
    assert f"fp16{suffix} and bf16{suffix} are both true" in found.message


def test_estimate_with_both_precisions_names_no_flag(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(AUTOS))
    (tmp_path / "args.json").write_text('{"fp16": true, "bf16": true}')
    given = ("--training-args", "args.json", "--gpus", 1, "--model", "gpt2")
    result = command_line.run("estimate", "ds.json", *given, cwd=tmp_path)
    assert "fp16 and bf16 are both true" in result.stdout
    assert "--precision" not in result.stderr
    assert "no precision is specified" not in result.stderr

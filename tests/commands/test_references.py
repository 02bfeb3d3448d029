"""The target program of a config is inferred from a file that references it."""

import json
from pathlib import Path

import pytest

import command_line
from command_line import Done

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}


def run(folder: Path, *arguments: object) -> Done:
    return command_line.run(*arguments, cwd=folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("args.json", '{"output_dir": "out", "deepspeed": "ds.json", "bf16": true}'),
        ("args.json", '{"training": {"deepspeed": "./ds.json"}}'),
        ("train.yaml", "{model: x, deepspeed: ds.json}"),
        ("train.yaml", "training: {deepspeed: configs/ds.json, bf16: true}"),
        ("train.yaml", "trainer:\n  args:\n    deepspeed: ds.json\n"),
        ("train.yaml", "runs:\n- deepspeed: ds.json\n"),
    ],
)
def test_reference_is_found_in_any_layout(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    (tmp_path / name).write_text(text)
    done = run(tmp_path, "validate", "ds.json")
    shown = " ".join(done.stderr.split())
    assert f"target: transformers 5.23 + DeepSpeed 0.19.8 (inferred from {name}" in shown


def test_arguments_of_a_reference_are_those_of_the_config(tmp_path: Path) -> None:
    """The config has the same findings alone, with the arguments named, and in their file."""
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG | {"gradient_clipping": 0.5}))
    arguments = {"output_dir": "out", "deepspeed": "ds.json", "bf16": True}
    arguments |= {"per_device_train_batch_size": 2}
    (tmp_path / "args.json").write_text(json.dumps(arguments | {"max_grad_norm": 0.5}))
    assert "DSC703" not in run(tmp_path, "validate", "ds.json").stdout
    (tmp_path / "args.json").write_text(json.dumps(arguments | {"max_grad_norm": 1.0}))
    ways = (["ds.json"], ["ds.json", "--training-args", "args.json"], ["args.json"], ["."])
    found = [run(tmp_path, "validate", *way).stdout for way in ways]
    assert all("DSC703" in each for each in found)
    assert len({each.count("error[") for each in found}) == 1
    resolved = run(tmp_path, "resolve", "ds.json", "--gpus", "2")
    assert "DSC703" in resolved.stdout and "using the arguments in args.json" in resolved.stderr


def test_values_of_the_config_are_not_arguments(tmp_path: Path) -> None:
    """The Trainer compares the config with its arguments, and not with what the config decides."""
    config = CONFIG | {
        "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
        "scheduler": {"type": "WarmupLR", "params": {}},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    arguments: dict[str, object] = {"output_dir": "out", "deepspeed": "ds.json"}
    arguments |= {"per_device_train_batch_size": 2, "num_train_epochs": 1}
    (tmp_path / "args.json").write_text(json.dumps(arguments | {"bf16": True}))
    assert "DSC703" not in run(tmp_path, "validate", "ds.json").stdout
    (tmp_path / "args.json").write_text(json.dumps(arguments))
    assert "bf16.enabled" in run(tmp_path, "validate", "ds.json").stdout


def test_reference_in_an_accelerate_config_on_one_line_is_found(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    plugin = {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"deepspeed_config_file": "ds.json"},
    }
    (tmp_path / "accelerate.json").write_text(json.dumps(plugin))
    done = run(tmp_path, "validate", "ds.json")
    assert "target: accelerate" in done.stderr and "more error" not in done.stderr


@pytest.mark.parametrize("text", ["# deepspeed: ds.json\n", "a: run with deepspeed ds.json\n"])
def test_mention_does_not_count_as_reference(tmp_path: Path, text: str) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    (tmp_path / "notes.yaml").write_text(text)
    assert "references it" not in run(tmp_path, "validate", "ds.json").stderr

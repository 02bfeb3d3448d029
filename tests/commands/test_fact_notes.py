"""Each assumption about batch, precision or sequence length is printed."""

import json
from pathlib import Path
from typing import Any

import pytest

import command_line
from command_line import Done

OPEN = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3},
}
WITHOUT = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}
MODEL = ("--model", "llama-3-8b", "--gpus", 4, "--device", "h100")


def run(*arguments: object) -> Done:
    return command_line.run(*arguments, columns=80)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "open.json"
    path.write_text(json.dumps(OPEN))
    return path


@pytest.fixture
def without(tmp_path: Path) -> Path:
    path = tmp_path / "without.json"
    path.write_text(json.dumps(WITHOUT))
    return path


def test_unspecified_global_batch_is_micro_batch_times_gpus(file: Path) -> None:
    own = ("--runtime", "dsengine", "--gpus", 4, "--device", "h100", "--micro-batch", 2, "-o", "-")
    done = run("resolve", file, *own)
    assert json.loads(done.stdout)["train_batch_size"] == 8
    assert "assuming global batch = micro batch x GPUs" in done.stderr
    given = run("resolve", file, *own, "--global-batch", 16)
    assert json.loads(given.stdout)["gradient_accumulation_steps"] == 2
    assert "assuming" not in given.stderr


def test_micro_batch_is_largest_that_fits(file: Path) -> None:
    done = run("plan", file, *MODEL, "--seq-len", 2048, "--output-format", "json")
    batch = json.loads(done.stdout)["effective"]["batch"]
    assert batch["accumulation"] == 1 and batch["micro_batch"] > 1
    assert "--global-batch" in done.stderr


def test_no_batch_is_assumed_for_the_trainer(file: Path) -> None:
    done = run("resolve", file, *MODEL, "--runtime", "transformers")
    assert "global batch" not in done.stderr


@pytest.mark.parametrize("command", ["resolve", "plan"])
def test_unintended_fp32_prints_note_with_fix(command: str, file: Path) -> None:
    unset = run(command, file, *MODEL, "--runtime", "transformers")
    assert "trains in fp32" in unset.stderr and "bf16=True" in unset.stderr
    explicit = run(command, file, *MODEL, "--runtime", "transformers", "--precision", "bf16")
    assert "fp32" not in explicit.stderr


def test_estimate_assumes_bf16(file: Path) -> None:
    done = run("estimate", file, *MODEL, "--seq-len", 2048)
    assert "assuming bf16=True in TrainingArguments (not specified)" in done.stderr
    assert "bf16, AdamW" in done.stdout


def test_config_without_precision_prints_note(without: Path) -> None:
    assert "trains in fp32" in run("estimate", without, *MODEL).stderr
    explicit = run("estimate", without, *MODEL, "--set", "bf16.enabled=false")
    assert "trains in fp32" not in explicit.stderr


@pytest.mark.parametrize("command", ["plan", "estimate"])
def test_verdict_without_seq_len_excludes_activations(command: str, without: Path) -> None:
    flags = (*MODEL, "--set", "bf16.enabled=true")
    first = " ".join(run(command, without, *flags).stdout.split())
    assert "Fits without activations" in first and "Specify --seq-len" in first
    counted = " ".join(run(command, without, *flags, "--seq-len", 512).stdout.split())
    assert "without activations" not in counted and "Fits" in counted


def test_plan_file_records_missing_activations(without: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    run("plan", without, *MODEL, "-o", plan)
    assert "at least" in run("plan", plan).stdout
    run("plan", without, *MODEL, "--seq-len", 512, "-o", plan, "--force")
    assert "at least" not in run("plan", plan).stdout


def test_equal_units_share_one_row_within_80_columns(without: Path) -> None:
    shown = run("plan", without, *MODEL).stdout
    assert "   31  218,112,000  around use  -         model.layers.{0-30}" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(("memory", "expected"), [("150GiB", "left"), ("125GiB", "available")])
def test_host_memory_is_reserved_for_the_system(memory: str, expected: str, without: Path) -> None:
    offload = ("--set", "zero_optimization.offload_optimizer.device=cpu")
    flags = (*MODEL, "--set", "bf16.enabled=true", *offload, "--seq-len", 512)
    done = run("estimate", without, *flags, "--host-memory", memory)
    shown = " ".join(done.stdout.split())
    assert "reserved for the system" in shown and expected in shown
    assert shown.count("Does not fit: needs") == (memory == "125GiB")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bf16": {"enabled": True}}, "bf16=True"),
        ({"gradient_accumulation_steps": 32}, "gradient_accumulation_steps=32"),
        ({"train_batch_size": 64}, "per_device_train_batch_size=16"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}}, "learning_rate=0.0003"),
        ({"gradient_clipping": 0.5}, "max_grad_norm=0.5"),
    ],
    ids=["precision", "accumulation", "batch", "rate", "clipping"],
)
def test_trainer_arguments_are_assumed_to_match_the_file(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(OPEN | changes))
    done = run("estimate", path, *MODEL, "--seq-len", 2048)
    assert done.returncode == 0, done.stdout
    assert f"{expected} in TrainingArguments (not specified)" in " ".join(done.stderr.split())
    given = tmp_path / "args.json"
    given.write_text(json.dumps({"per_device_train_batch_size": 3}))
    stopped = run("estimate", path, *MODEL, "--seq-len", 2048, "--training-args", given)
    assert stopped.returncode == 1 and "DSC70" in stopped.stdout, "specified arguments are compared"


def test_estimate_does_not_require_total_steps(tmp_path: Path) -> None:
    rates = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto")
    schedule = {"type": "WarmupDecayLR", "params": {**rates, "total_num_steps": "auto"}}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(OPEN | {"scheduler": schedule}))
    done = run("estimate", path, *MODEL, "--seq-len", 2048)
    assert done.returncode == 0 and "DSC150" not in done.stdout


def test_recompute_flag_keeps_assumed_precision(file: Path) -> None:
    done = run("estimate", file, *MODEL, "--seq-len", 2048, "--recompute", "full")
    assert "H100-SXM5-80GB, bf16" in " ".join(done.stdout.split())
    assert "no effect" not in done.stderr


@pytest.mark.parametrize(("total", "expected"), [(2, False), (12, False), (16, True)])
def test_only_matching_micro_batch_is_assumed(total: int, expected: bool, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_batch_size": total, "zero_optimization": {"stage": 2}}))
    done = run("estimate", path, "--runtime", "transformers", "--params", "1e9", "--gpus", 8)
    assert ("per_device_train_batch_size=" in done.stderr) is expected


def test_accelerate_plugin_assumes_one_sample_per_loader_batch(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n"
        "deepspeed_config: {zero_stage: 3}\n"
    )
    flags = ("--model", "llama-3-8b", "--device", "h100", "--seq-len", 2048)
    done = run("estimate", path, *flags)
    assert done.returncode == 0 and "micro batch 1 x 2,048" in " ".join(done.stdout.split())
    assert "assuming DataLoader(..., batch_size=1) in the script" in " ".join(done.stderr.split())
    assert "assuming" not in run("estimate", path, *flags, "--micro-batch", 2).stderr


def test_expert_parallel_without_known_experts_is_not_estimated(tmp_path: Path) -> None:
    path = tmp_path / "experts.json"
    experts = {"enabled": True, "autoep_size": 4}
    path.write_text(json.dumps({**WITHOUT, "expert_parallel": experts}))
    estimate = ("estimate", path, *MODEL, "--runtime", "deepspeed")
    assert "expert_parallel.autoep_size is not estimated" in run(*estimate).stderr
    path.write_text(json.dumps({**WITHOUT, "expert_parallel": {**experts, "enabled": False}}))
    assert "not estimated" not in run(*estimate).stderr

"""``estimate`` reports the errors of a config and estimates it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dsconfig.commands.app import app

STAGE_3 = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
OFFLOADED = STAGE_3 | {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
AUTO_SCHEDULER = STAGE_3 | {"train_batch_size": "auto", "scheduler": {"type": "auto"}}
SMALL = ("--model", "gpt2", "--gpus", "2", "--device", "rtx-4090", "--seq-len", "512")
LARGE = ("--model", "llama-3-8b", *SMALL[2:], "--host-memory", "64GiB")


def estimate(tmp_path: Path, config: dict[str, Any], *flags: str) -> Any:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    return CliRunner().invoke(app, ["estimate", str(path), *flags], terminal_width=200)


@pytest.mark.parametrize(
    ("config", "flags", "code"),
    [
        (OFFLOADED, (*LARGE, "--runtime", "deepspeed"), "DSC502"),
        (AUTO_SCHEDULER, SMALL, "DSC101"),
        (STAGE_3, (*SMALL, "--training-args", "args.json"), "DSC703"),
    ],
)
def test_errors_and_estimate_are_printed(
    config: dict[str, Any],
    flags: tuple[str, ...],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("args.json").write_text('{"per_device_train_batch_size": 3}')
    done = estimate(tmp_path, config, *flags)
    assert done.exit_code == 1, done.output
    assert f"error[{code}]" in done.stdout
    verdict = done.stdout.partition("target: ")[2]
    assert "Fits: " in verdict or "Does not fit: " in verdict
    assert "required per GPU" in verdict
    data = json.loads(estimate(tmp_path, config, *flags, "--output-format", "json").stdout)
    assert code in [error["code"] for error in data["diagnostics"]]
    assert data["options"][0]["device"]["needed_bytes"] > 0


def test_conflicting_value_is_replaced_by_that_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("args.json").write_text('{"per_device_train_batch_size": 3}')
    conflicting = STAGE_3 | {"train_batch_size": "auto", "gradient_accumulation_steps": "auto"}
    done = estimate(tmp_path, conflicting, *SMALL, "--training-args", "args.json")
    assert "micro batch 3 x 512" in " ".join(done.stdout.split())
    assert "without the rejected values of train_micro_batch_size_per_gpu" in done.stderr


def test_fixes_for_host_memory_are_printed(tmp_path: Path) -> None:
    done = estimate(tmp_path, OFFLOADED, *LARGE, "--runtime", "deepspeed")
    fixes = done.stdout.partition("To fit the host memory:")[2]
    for fix in ("offload_optimizer.device to nvme", "offload_optimizer.ratio", "3 nodes"):
        assert fix in fixes
    assert "LoRA" in done.stdout


def test_config_that_cannot_be_read_is_not_estimated(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"stage": 3}, ')
    done = CliRunner().invoke(app, ["estimate", str(path), *SMALL])
    assert done.exit_code == 1 and "no estimate" in done.stderr


TWO_A100 = (*LARGE[:4], "--device", "a100-80gb", *LARGE[6:])


@pytest.mark.parametrize(
    ("program", "steps"),
    [
        (
            "transformers",
            'delete offload_optimizer from the config; optim="adamw_bnb_8bit" in',
        ),
        ("accelerate", "delete offload_optimizer from the config; optimizer=bnb.optim.AdamW8bit"),
        (
            "deepspeed",
            "delete offload_optimizer from the config; set zero_allow_untested_optimizer to true",
        ),
    ],
)
def test_8_bit_optimizer_on_the_gpu_is_offered_if_it_fits(
    tmp_path: Path, program: str, steps: str
) -> None:
    flags = ("--runtime", program)
    fixes = estimate(tmp_path, OFFLOADED, *TWO_A100, *flags).stdout.partition("host memory:")[2]
    assert f"use an 8-bit optimizer on the GPU: {steps}" in " ".join(fixes.split())
    assert "8-bit" not in estimate(tmp_path, OFFLOADED, *LARGE, *flags).stdout


def test_8_bit_optimizer_is_not_offered_for_dsengine(tmp_path: Path) -> None:
    done = estimate(tmp_path, OFFLOADED, *TWO_A100, "--runtime", "dsengine")
    assert "To fit the host memory:" in done.stdout and "8-bit" not in done.stdout


def test_config_with_8_bit_optimizer_on_the_gpu_fits_as_stated(tmp_path: Path) -> None:
    done = estimate(tmp_path, OFFLOADED, *TWO_A100, "--runtime", "transformers")
    (needs,) = re.findall(r"adamw_bnb_8bit.*?([\d.]+ GiB per GPU)", " ".join(done.stdout.split()))
    path = tmp_path / "args.json"
    path.write_text('{"optim": "adamw_bnb_8bit", "per_device_train_batch_size": 1}')
    applied = estimate(tmp_path, STAGE_3, *TWO_A100, "--training-args", str(path))
    assert applied.exit_code == 0 and "Does not fit" not in applied.stdout
    assert re.search(rf"required per GPU +{needs.split()[0]}", applied.stdout)

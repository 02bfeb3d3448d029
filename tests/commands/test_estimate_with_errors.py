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
COUNTED = ("--params", "7e9", "--gpus", "8")
CORPUS = Path(__file__).parent.parent / "oracle" / "corpus"
CANNOT_START = {
    "0182.json": "no TrainingArguments match its batch sizes",
    "0204.json": "no ranks match its batch sizes",
    "0212.json": "transformers requires zero_optimization",
    "0213.json": "transformers requires zero_optimization",
}


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
    for fix in ("offload_optimizer.ratio", "3 nodes"):
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


AUTO_BUCKETS = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}


def test_errors_that_do_not_prevent_a_start_are_printed_above_the_estimate(tmp_path: Path) -> None:
    ignored = STAGE_3 | {"train_micro_batch_size": 4, "optimizer": {"type": "AdamW", "lr": 1e-4}}
    done = estimate(tmp_path, ignored, *COUNTED, "--runtime", "deepspeed")
    assert done.exit_code == 0, done.output
    above, _, below = done.stdout.partition("target: ")
    assert "error[DSC021]" in above and "required per GPU" in below


def test_bucket_sizes_of_a_parameter_count_are_those_of_its_assumed_width(tmp_path: Path) -> None:
    done = estimate(tmp_path, AUTO_BUCKETS, *COUNTED, "--output-format", "json")
    assert done.exit_code == 0, done.output
    assert "assuming hidden_size=4224" in done.stderr
    known = {
        **AUTO_BUCKETS,
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": 4224**2,
            "stage3_prefetch_bucket_size": int(0.9 * 4224**2),
            "stage3_param_persistence_threshold": 10 * 4224,
        },
    }
    expected = json.loads(estimate(tmp_path, known, *COUNTED, "--output-format", "json").stdout)
    assert json.loads(done.stdout)["options"] == expected["options"]


@pytest.mark.parametrize(
    ("config", "precision"),
    [
        ({"bf16": {"enabled": True}, "fp16": {"enabled": "auto"}}, "bf16"),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "auto_cast": True}}, "fp16"),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, "bf16"),
    ],
)
def test_assumed_precision_is_one_with_which_the_run_starts(
    tmp_path: Path, config: dict[str, Any], precision: str
) -> None:
    done = estimate(tmp_path, STAGE_3 | config, *COUNTED, "--runtime", "transformers")
    assert done.exit_code == 0, done.output
    assert precision in done.stdout and f"assuming {precision}=True" in done.stderr


@pytest.mark.parametrize(
    "config",
    [
        {"train_batch_size": 64, "gradient_accumulation_steps": "auto"},
        {
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "scheduler": {
                "type": "WarmupDecayLR",
                "params": {
                    "total_num_steps": 500,
                    "warmup_num_steps": "auto",
                    "warmup_max_lr": 1e-4,
                },
            },
        },
    ],
)
def test_assumed_arguments_match_the_numbers_of_the_file(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    done = estimate(tmp_path, STAGE_3 | config, *COUNTED, "--runtime", "transformers")
    assert done.exit_code == 0 and "error[" not in done.stdout, done.output


def test_values_that_no_fact_determines_are_estimated_at_their_defaults(tmp_path: Path) -> None:
    done = estimate(tmp_path, AUTO_BUCKETS, *COUNTED, "--runtime", "dsengine")
    assert done.exit_code == 0, done.output
    assert "required per GPU" in done.stdout and "DSC150" in done.stdout


@pytest.mark.long
def test_every_config_that_deepspeed_accepts_is_estimated(tmp_path: Path) -> None:
    rows = map(json.loads, (CORPUS / "verdicts.jsonl").read_text().splitlines())
    for row in rows:
        results = (row["deepspeed"], row["auto_filled"])
        if row["template"] or row["late_failure"] or "rejected" in results:
            continue
        flags = ("--params", "7e9", "--gpus", str(row["world_size"] or 8))
        done = CliRunner().invoke(app, ["estimate", str(CORPUS / row["file"]), *flags])
        assert "peak allocated" in done.stdout, row["file"]
        assert done.exit_code == (1 if row["file"] in CANNOT_START else 0), row["file"]

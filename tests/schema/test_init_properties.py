"""``dsconfig init`` never writes a config that ``validate`` rejects under the same facts."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import dsconfig
from dsconfig.facts import gather
from dsconfig.report import Severity

from .conftest import Run

PROGRAMS = ("transformers", "accelerate", "deepspeed", "dsengine")
MODELS = ("gpt2", "qwen2.5-0.5b", "llama-2-7b", "mixtral-8x7b")
DEVICES = ("v100-16gb", "t4", "rtx-4090", "a100-40gb", "h100", "mi250x", "cpu")
ARGUMENTS = {
    "per_device_train_batch_size": (1, 2, 8),
    "gradient_accumulation_steps": (1, 3, 4),
    "bf16": (True, False),
    "fp16": (True, False),
    "max_grad_norm": (0.0, 0.5, 1.0),
    "learning_rate": (1e-5, 5e-4),
    "optim": ("adamw_torch", "adamw_torch_fused", "adafactor", "paged_adamw_8bit", "sgd"),
    "lr_scheduler_type": ("linear", "cosine", "constant", "constant_with_warmup"),
    "warmup_steps": (0, 100, 0.1),
    "adam_beta2": (0.95,),
    "adam_epsilon": (1e-6,),
    "weight_decay": (0.1,),
    "gradient_checkpointing": (True, False),
    "max_steps": (10, 1000),
    "auto_find_batch_size": (True,),
    "warmup_ratio": (0.03,),  # removed from transformers 5: no config is valid with it
}
LAUNCH = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "num_machines": 1,
}
REQUESTS = st.fixed_dictionaries(
    {"model": st.sampled_from(MODELS), "gpus": st.sampled_from((1, 2, 3, 8, 16))}
    | {"device": st.sampled_from(DEVICES)},
    optional={
        "seq_len": st.sampled_from((128, 512, 8192)),
        "micro_batch": st.sampled_from((1, 2, 16)),
        "global_batch": st.sampled_from((1, 7, 64)),
        "host_memory": st.sampled_from(("16GiB", "1TiB")),
        "learning_rate": st.sampled_from((3e-4, 1e-2)),
    },
) | st.just({})
TRAINING = st.none() | st.fixed_dictionaries(
    {"output_dir": st.just("out")},
    optional={name: st.sampled_from(values) for name, values in ARGUMENTS.items()},
)
PRECISIONS = st.none() | st.sampled_from(("no", "fp16", "bf16"))


def clean(text: str, facts: dsconfig.Facts, runtime: str | None) -> bool:
    report = dsconfig.validate(text, facts, runtime=runtime, version="0.19.8")
    return all(found.severity is Severity.INFO for found in report.diagnostics)


ANY = given(REQUESTS, TRAINING, PRECISIONS, st.none() | st.sampled_from(PROGRAMS))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@ANY
@example({}, {"output_dir": "o", "optim": "adafactor"}, None, "transformers")
@example({}, {"output_dir": "o", "lr_scheduler_type": "cosine"}, None, "deepspeed")
@example({}, {"output_dir": "o", "max_grad_norm": 0.5, "adam_epsilon": 1e-6}, None, "dsengine")
@example({}, {"output_dir": "o", "gradient_accumulation_steps": 4}, None, "accelerate")
@example({"model": "gpt2", "gpus": 2, "device": "h100"}, None, "no", "deepspeed")
@example({"model": "gpt2", "gpus": 2, "device": "h100", "micro_batch": 1}, None, None, "accelerate")
@example({"params": "7e9", "gpus": 8, "device": "h100", "micro_batch": 1}, None, None, "accelerate")
def test_init_output_is_clean_or_refused(
    run: Run,
    tmp_path_factory: pytest.TempPathFactory,
    request_: dict[str, Any],
    training: dict[str, Any] | None,
    precision: str | None,
    runtime: str | None,
) -> None:
    check(run, tmp_path_factory.mktemp("init"), request_, training, precision, runtime)


@pytest.mark.deep
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@ANY
def test_more_init_output_is_clean_or_refused(
    run: Run,
    tmp_path_factory: pytest.TempPathFactory,
    request_: dict[str, Any],
    training: dict[str, Any] | None,
    precision: str | None,
    runtime: str | None,
) -> None:
    check(run, tmp_path_factory.mktemp("init"), request_, training, precision, runtime)


def check(
    run: Run,
    folder: Path,
    request_: dict[str, Any],
    training: dict[str, Any] | None,
    precision: str | None,
    runtime: str | None,
) -> None:
    facts = dict(request_)
    if training is not None:
        facts["training_args"] = folder / "args.json"
        facts["training_args"].write_text(json.dumps(training))
    if precision is not None:
        facts["accelerate_config"] = folder / "accelerate.yaml"
        launch = {**LAUNCH, "mixed_precision": precision, "num_processes": request_.get("gpus", 2)}
        facts["accelerate_config"].write_text(yaml.safe_dump(launch))
    flags = [part for name, value in facts.items() for part in (_flag(name), value)]
    code, text, err = run("init", *flags, *(("--runtime", runtime) if runtime else ()))
    if code:
        assert code == 2 and "error: " in err and not text
        return
    target = runtime or next((name for name in PROGRAMS if f"target: {name}" in err), None)
    assert clean(text, gather(**facts), target)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def test_init_follows_training_arguments(run: Run, tmp_path: Path) -> None:
    arguments = {"optim": "adafactor", "lr_scheduler_type": "cosine", "max_grad_norm": 0.5}
    path = tmp_path / "args.json"
    path.write_text(json.dumps({"output_dir": "out", **arguments}))
    code, text, _ = run("init", "--training-args", path, "--runtime", "deepspeed")
    config = dsconfig.read(text).value
    assert code == 0 and config["gradient_clipping"] == 0.5
    assert "optimizer" not in config and "scheduler" not in config


def test_init_refuses_invalid_arguments(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text(json.dumps({"output_dir": "out", "warmup_ratio": 0.03}))
    code, text, err = run("init", "--training-args", path)
    assert (code, text) == (2, "") and "DSC707" in err and "warmup_ratio" in err

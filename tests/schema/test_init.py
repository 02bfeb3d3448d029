"""``dsconfig init`` writes a valid starter config for each program."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import dsconfig
from dsconfig.facts import gather
from dsconfig.project import launch_file
from sweeps import sweep

from .conftest import Run

LLAMA = ("--model", "llama-2-7b", "--gpus", 8, "--device", "a100-80gb")
REQUESTS = {
    "nothing known": ((), {}),
    "llama": (LLAMA, {"model": "llama-2-7b", "gpus": 8, "device": "a100-80gb"}),
    "with a global batch": (
        ("--model", "llama-2-70b", "--gpus", 16, "--device", "h100", "--global-batch", 64),
        {"model": "llama-2-70b", "gpus": 16, "device": "h100"},
    ),
    "with offload": (
        ("--model", "llama-2-13b", "--gpus", 2, "--device", "a100-40gb", "--nodes", 1),
        {"model": "llama-2-13b", "gpus": 2, "device": "a100-40gb"},
    ),
    "without bf16": (
        ("--params", "1.3e9", "--gpus", 4, "--device", "v100-32gb", "--micro-batch", 2),
        {"params": "1.3e9", "gpus": 4, "device": "v100-32gb"},
    ),
    "one rank": (
        ("--params", "125e6", "--gpus", 1, "--device", "a100-80gb", "--learning-rate", "3e-4"),
        {"params": "125e6", "gpus": 1, "device": "a100-80gb"},
    ),
    "on the CPU": (
        ("--model", "gpt2", "--gpus", 2, "--device", "cpu", "--seq-len", 512),
        {"model": "gpt2", "gpus": 2, "device": "cpu"},
    ),
}
"""Arguments of init, and the facts that its output is validated with."""


def starter_config(run: Run, *arguments: object) -> tuple[str, dict[str, Any]]:
    code, out, err = run("init", *arguments)
    assert code == 0, err
    return out, dsconfig.read(out).value


@sweep(1, request_=REQUESTS, runtime=[None, "deepspeed", "transformers", "dsengine", "accelerate"])
def test_init_output_is_clean_for_target(
    run: Run, runtime: str | None, request_: tuple[tuple[object, ...], dict[str, Any]]
) -> None:
    """Without --runtime the output is valid for every program."""
    arguments, fact_arguments = request_
    text, _ = starter_config(run, *arguments, *(("--runtime", runtime) if runtime else ()))
    for facts in (None, gather(**fact_arguments)) if fact_arguments else (None,):
        assert not dsconfig.validate(text, facts, runtime=runtime, version="0.19.8").diagnostics


def test_init_output_explains_choices(run: Run) -> None:
    text, config = starter_config(run, *LLAMA)
    assert json.loads(text) == config
    remarks = config["$dsconfig"]["remarks"]
    assert remarks["this file"].startswith(
        "llama-2-7b on 8 x A100-SXM4-80GB, 2,048 tokens per sample"
    )
    assert (
        remarks["bf16.enabled"] == "A100-SXM4-80GB supports bf16, which does not need loss scaling"
    )
    assert config["bf16"] == {"enabled": True}


def test_init_hjson_output_has_comments(run: Run) -> None:
    text, config = starter_config(run, *LLAMA, "--runtime", "deepspeed")
    assert "// llama-2-7b on 8 x A100-SXM4-80GB, 2,048 tokens per sample." in text
    assert "// A100-SXM4-80GB supports bf16, which does not need loss scaling" in text
    assert config["bf16"] == {"enabled": True}
    assert config["train_micro_batch_size_per_gpu"] >= 1


def test_init_output_has_no_inert_keys(run: Run) -> None:
    # With one sample stages 1 and 3 are as fast; a larger batch would fit only with stage 3.
    _, config = starter_config(run, *LLAMA, "--micro-batch", 1)
    assert "fp16" not in config
    assert config["zero_optimization"]["stage"] < 3
    assert not [name for name in config["zero_optimization"] if name.startswith("stage3_")]


def test_init_output_resolves_at_any_world_size(run: Run) -> None:
    assert "train_batch_size" not in starter_config(run, *LLAMA)[1]


def test_init_keeps_global_batch_at_given_world_size(run: Run) -> None:
    _, config = starter_config(run, *LLAMA, "--global-batch", 64)
    steps = config["gradient_accumulation_steps"]
    assert 8 * config["train_micro_batch_size_per_gpu"] * steps == 64
    remarks = config["$dsconfig"]["remarks"]
    assert remarks["gradient_accumulation_steps"] == "64 samples per step on 8 ranks"


def test_init_for_trainer_leaves_auto(run: Run) -> None:
    text, config = starter_config(run, *LLAMA, "--runtime", "transformers")
    assert json.loads(text) == config
    assert config["train_micro_batch_size_per_gpu"] == "auto"
    assert config["optimizer"]["params"]["lr"] == "auto"
    assert config["$dsconfig"]["remarks"]["auto"] == "filled in by transformers"
    assert config["zero_optimization"]["stage"] in (0, 1, 2, 3)


def test_init_on_one_gpu_does_not_shard(run: Run) -> None:
    _, config = starter_config(run, "--params", "125e6", "--gpus", 1, "--device", "a100-80gb")
    assert config["zero_optimization"] == {"stage": 0}


def test_init_does_not_overwrite_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    assert run("init", "-o", path)[0] == 0
    written = path.read_text()
    assert run("validate", path)[:2] == (0, "")
    code, _, err = run("init", *LLAMA, "-o", path)
    assert code == 2 and "--force" in err and path.read_text() == written
    assert run("init", *LLAMA, "-o", path, "--force")[0] == 0
    assert path.read_text() != written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpus", 8), "--model (or --params), --gpus and --device together"),
        (("--runtime", "unknown"), "--runtime"),
        (("--params", "400e9", "--gpus", 1, "--device", "v100-16gb"), "micro batch 1 does not fit"),
        (("--model", "no-such-model", "--gpus", 1, "--device", "h100"), "no-such-model"),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[object, ...], message: str) -> None:
    code, out, err = run("init", *arguments)
    assert (code, out) == (2, "")
    assert message in err


WORLDS = {
    "adapters": ("--model", "llama-2-7b", "--gpus", 2, "--device", "rtx-4090", "--lora-rank", 16),
    "small": ("--model", "gpt2", "--gpus", 4, "--device", "v100-16gb", "--host-memory", "64GiB"),
}


@sweep(1, world=WORLDS, program=[None, "deepspeed", "transformers", "accelerate", "dsengine"])
def test_init_prints_the_estimate_of_its_config(
    run: Run, tmp_path: Path, world: tuple[object, ...], program: str | None
) -> None:
    path = tmp_path / "ds.json"
    chosen = ("--runtime", program) if program else ()
    code, _, err = run("init", *world, *chosen, "-o", path)
    assert code == 0
    (command,) = re.findall("memory per component: `dsconfig (.*)`", err)
    code, out, _ = run(*shlex.split(command), "--fail-if-oom")
    assert code == 0 and "\nFits" in out
    (needed,) = re.findall(r"Host memory: \S+ \wiB per node required", " ".join(err.split()))
    if program:
        assert needed in out


def test_init_prints_the_accelerate_config_that_goes_with_it(run: Run, tmp_path: Path) -> None:
    config, launch = tmp_path / "ds.json", tmp_path / "accelerate.yaml"
    given = tmp_path / "given.yaml"
    given.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\n"
        "num_processes: 8\nrdzv_backend: static\ndeepspeed_config:\n  zero_stage: 3\n"
        "  zero3_init_flag: true\n  offload_optimizer_device: cpu\n"
    )
    code, _, err = run("init", "--accelerate-config", given, "-o", config)
    assert code == 0
    written = err.partition("accelerate config to launch it with:\n")[2]
    launch.write_text(written)
    assert "rdzv_backend: static" in written and "mixed_precision" not in written
    assert 'Accelerator(mixed_precision="bf16")' in err and "fp16" not in err
    assert run("validate", launch)[:2] == (0, "")
    zero = json.loads(config.read_text())["zero_optimization"]
    assert zero["stage"] == 3 and zero["offload_optimizer"]["device"] == "cpu"


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="searched", marks=pytest.mark.long),
        pytest.param(("--sequence-parallel", 8, "--accelerate-config", "old.yaml"), id="specified"),
    ],
)
def test_launch_file_divides_the_sequence(
    flags: tuple[object, ...], tmp_path: Path, run: Run
) -> None:
    old = {"parallelism_config": {"parallelism_config_sp_attn_implementation": "sdpa"}}
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({"num_processes": 64, **old}))
    flags = tuple(tmp_path / "old.yaml" if each == "old.yaml" else each for each in flags)
    config = tmp_path / "ds.json"
    model = ("--model", "qwen2.5-32b", "--gpus", 64, "--device", "h100", "--seq-len", 131072)
    _, _, err = run("init", *model, "--runtime", "accelerate", "-o", config, *flags)
    launch = yaml.safe_load(err.partition("accelerate config to launch it with:")[2])
    kept = old["parallelism_config"] if flags else {}
    assert launch["parallelism_config"] == kept | {
        "parallelism_config_sp_size": 8,
        "parallelism_config_dp_shard_size": 8,
    }
    path = tmp_path / "accelerate.yaml"
    path.write_text(yaml.safe_dump(launch))
    assert run("validate", path)[:2] == (0, "")
    assert gather(accelerate_config=path).degrees.sequence == 8


def test_launch_file_names_the_new_config_and_keeps_other_entries() -> None:
    old = {
        "distributed_type": "MULTI_GPU",
        "num_processes": 8,
        "mixed_precision": "bf16",
        "main_process_port": 29501,
        "deepspeed_config": {"deepspeed_config_file": "old.json", "zero3_init_flag": True},
    }
    new = launch_file.naming("new.json", 2, gpus=4, nodes=1, launch=old)
    assert "parallelism_config" not in new
    assert (new["distributed_type"], new["num_processes"]) == ("DEEPSPEED", 4)
    named = {"deepspeed_config_file": "new.json", "zero3_init_flag": False}
    assert new["deepspeed_config"] == named and new["main_process_port"] == 29501

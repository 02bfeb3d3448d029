"""Messages: suggestions for misspelled names, notes and help texts."""

import json
import re
import stat
from pathlib import Path
from typing import Any, cast

import pytest

import dsconfig
from command_line import run
from dsconfig.commands import app
from dsconfig.facts.gathering import gather
from dsconfig.facts.hub import config_of


@pytest.mark.parametrize(
    ("typed", "meant"), [(("estmate",), "estimate"), (("estimate", "--modl", "x"), "--model")]
)
def test_misspelled_command_or_flag_suggests_nearest(typed: tuple[str, ...], meant: str) -> None:
    done = run(*typed)
    assert done.returncode == 2 and meant in done.stderr


def test_models_and_devices_are_found_by_words() -> None:
    assert "meta-llama/Llama-3.1-8B" in run("models", "LLAMA", "3-8b").stdout
    (gpu,) = json.loads(run("devices", "h200-sxm", "--output-format", "json").stdout)["devices"]
    assert gpu["name"] == "H200-SXM-141GB"
    nothing = run("models", "nobodys-model")
    assert nothing.returncode == 2 and "dsconfig models" in nothing.stderr


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Llama-3.1-8B-Instruct",
        "Meta Llama 3 8B",
        "LLAMA_3_8B",
        "llama-3.1-8b",
    ],
)
def test_model_names_ignore_case_and_dashes(name: str) -> None:
    model = gather(model=name).model
    assert model is not None and model.parameters == 8_030_261_248


def test_cached_hub_model_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100}
    home = tmp_path / "hub" / "models--me--tiny" / "snapshots" / "abc"
    home.mkdir(parents=True)
    (home / "config.json").write_text(json.dumps(config))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert config_of("me/tiny") == home / "config.json"
    assert config_of("me/other") is None and config_of("tiny") is None
    model = gather(model="me/tiny").model
    assert model is not None and model.hidden_size == 64


@pytest.fixture
def machine_of_two(tmp_path: Path) -> dict[str, str]:
    """Environment with a fake nvidia-smi that lists two GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + 'echo "NVIDIA H100 80GB HBM3, 81559"\n' * 2)
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "0,1"}


def test_more_ranks_than_gpus_are_rejected_before_start(
    tmp_path: Path, machine_of_two: dict[str, str]
) -> None:
    script, config = tmp_path / "train.py", tmp_path / "ds.json"
    script.write_text("print('started')")
    config.write_text('{"train_batch_size": 6}')
    done = run("run", config, "--gpus", 3, "--", script, environment=machine_of_two)
    assert done.returncode == 2 and "started" not in done.stdout
    assert "this machine has 2: use --gpus 2, or set CUDA_VISIBLE_DEVICES=" in " ".join(
        done.stderr.split()
    )


def test_hidden_gpus_are_not_counted(machine_of_two: dict[str, str]) -> None:
    outputs = {
        shown: run(
            "estimate",
            "--model",
            "gpt2",
            environment={**machine_of_two, "CUDA_VISIBLE_DEVICES": shown},
        )
        for shown in ("0,1", "1", "")
    }
    assert "2 x NVIDIA H100" in outputs["0,1"].stderr
    assert "1 x NVIDIA H100" in outputs["1"].stderr
    assert "NVIDIA H100" not in outputs[""].stderr


def test_gpus_of_this_machine_are_the_default(
    machine_of_two: dict[str, str],
) -> None:
    done = run("estimate", "--model", "gpt2", "--gpus", 1, environment=machine_of_two)
    assert done.returncode == 0 and "detected; override with --device" in done.stderr
    assert "NVIDIA H100 80GB" in done.stderr and "1 x H100-SXM5-80GB" in done.stdout


def test_brackets_of_an_extra_are_printed(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from dsconfig.commands import doctor

    text = "missing (pip install 'dsconfig-zero[engine]')"
    found = [doctor.Check(doctor.State.NOTE, "torch", text)]
    monkeypatch.setattr(doctor, "machine_checks", lambda: iter(found))
    doctor.doctor(cast(Any, None))
    assert "'dsconfig-zero[engine]'" in capsys.readouterr().out


def test_fit_names_only_missing_flags() -> None:
    errors = run("estimate", "--fit", "--gpus", 8, "--seq-len", 512).stderr
    assert "--device" in errors and "--gpus" not in errors
    complete = run("estimate", "--fit", "--gpus", 8, "--device", "h100", "--host-memory", "1TB")
    assert complete.returncode == 0 and "largest model (parameters): " in complete.stdout
    assert "--gpus" not in complete.stderr and "of host memory" not in complete.stdout


def test_fit_prints_assumed_host_memory() -> None:
    answered = run("estimate", "--fit", "--gpus", 8, "--device", "h100")
    [first] = [line for line in answered.stdout.splitlines() if line.startswith("largest model (")][
        :1
    ]
    assert first.startswith("largest model (parameters), without offload: ")
    assert first.endswith("of host memory per node")


def test_reasons_have_no_negative_sizes() -> None:
    flags = ("--model", "gpt2", "--gpus", 2, "--device", "h100", "--seq-len", 512)
    data = json.loads(run("tune", *flags, "--output-format", "json").stdout)
    reasons = [each["reason"] for each in data["candidates"]]
    assert any("GiB more" in reason or "sharded" in reason for reason in reasons)
    assert not any(re.search(r"-\d| 0 [GM]iB", reason) for reason in reasons), reasons


def test_unknown_release_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text('{"train_batch_size": 8}')
    for flag, *command in (
        ("--deepspeed-version", "validate", config),
        ("--deepspeed-version", "resolve", config),
        ("--deepspeed-version", "schema"),
        ("--from-version", "diff", config),
        ("--to-version", "diff", config, "--from-version", "0.14.4"),
    ):
        done = run(*command, flag, "9.9.9")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{flag}: '9.9.9' is not a known DeepSpeed release; nearest: 0.19.8" in done.stderr
    wrong = run("validate", config, "--deepspeed-version", "newest")
    assert wrong.returncode == 2 and "is not a DeepSpeed version" in wrong.stderr


def test_explain_accepts_rule_name() -> None:
    assert "DSC401" in run("explain", "stage-missing").stdout
    assert "DSC704" in run("explain", "program-stops").stdout


def test_diff_help_explains_set() -> None:
    assert "of A, but not of B" in run("diff", "--help").stdout


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("gradient_checkpointing", True, "TrainingArguments"),
        ("learning_rate", 1e-4, "optimizer.params.lr"),
        ("warmup_steps", 10, "warmup_num_steps"),
        ("batch_size", 8, "train_micro_batch_size_per_gpu"),
        ("zero_stage", 2, '"zero_optimization": {"stage"'),
    ],
)
def test_key_of_other_program_suggests_its_place(key: str, value: object, text: str) -> None:
    report = dsconfig.validate({"train_batch_size": 8, key: value}, runtime="deepspeed")
    (found,) = [each for each in report.diagnostics if each.pointer == f"/{key}"]
    assert text in (found.help or "")


def test_help_shows_block_form() -> None:
    report = dsconfig.validate({"train_batch_size": 8, "flops_profiler": 3}, runtime="deepspeed")
    (found,) = [each for each in report.diagnostics if each.pointer == "/flops_profiler"]
    assert '{"enabled": true}' in (found.help or "")


def test_messages_have_no_python_escapes() -> None:
    document = dsconfig.read('{\n"a": it\'s,\n"train_batch_size": 8}')
    text = [each.message for each in document.diagnostics]
    assert any('"it\'s,"' in message for message in text), text


@pytest.mark.parametrize("name", app.COMMANDS)
def test_help_has_two_examples(name: str) -> None:
    shown = " ".join(run(name, "--help").stdout.split())
    assert "Examples:" in shown
    assert shown.partition("Examples:")[2].count(f"dsconfig {name}") >= 2


def test_estimate_without_a_device_does_not_state_that_it_does_not_fit() -> None:
    done = run("estimate", "--params", "13e9", "--gpus", "8")
    assert done.returncode == 0 and "does not fit" not in done.stderr


def test_models_are_not_cut_on_a_narrow_terminal() -> None:
    shown = run("models", "llama", columns=80).stdout
    assert "deepseek-ai/DeepSeek-R1-Distill-Llama-70B" in shown
    assert max(map(len, shown.splitlines())) <= 80

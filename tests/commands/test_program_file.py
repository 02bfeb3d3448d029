"""Files of `tune` and `init` are accepted by their program; `plan` begins with a verdict."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
import dsengine
from command_line import run
from dsconfig.facts.gathering import gather

WORLD = ("--model", "llama-3-8b", "--gpus", "4", "--device", "a100-80gb", "--seq-len", "8192")


def printed_arguments(text: str) -> dict[str, Any]:
    """Return the TrainingArguments in the output of a command."""
    statement = " ".join(text.split()).partition("Also set ")[2]
    arguments = statement.partition(" in TrainingArguments")[0]
    return eval(f"dict({arguments})", {"dsengine": dsengine})


def test_trainer_accepts_file_of_tune_with_printed_arguments(tmp_path: Path) -> None:
    out = tmp_path / "tw.json"
    done = run("tune", *WORLD, "--runtime", "transformers", "-o", out)
    assert done.returncode == 0, done.stderr
    config, arguments = json.loads(out.read_text()), printed_arguments(done.stdout)
    assert (
        config["optimizer"]["params"]["lr"] == "auto" and "activation_checkpointing" not in config
    )
    assert arguments["gradient_checkpointing"] is True and arguments["bf16"] is True
    facts = gather(
        model="llama-3-8b",
        gpus=4,
        device="a100-80gb",
        seq_len=8192,
        training_args=arguments,
    )
    assert not dsconfig.validate(out, facts, runtime="transformers").errors
    resolution = dsconfig.resolve(out, facts, runtime="transformers")
    assert resolution.ok, resolution.diagnostics
    (fit,) = dsconfig.estimate(resolution, facts).options[0].fits
    assert fit.fits


@pytest.mark.parametrize("name", ["transformers", "accelerate", "deepspeed"])
def test_written_files_have_no_ignored_blocks(name: str, tmp_path: Path) -> None:
    for command in ("tune", "init"):
        out = tmp_path / f"{command}.json"
        assert run(command, *WORLD, "--runtime", name, "-o", out).returncode == 0
        assert "activation_checkpointing" not in dsconfig.read(out).value
    assert "gradient_checkpointing" in out.read_text(), "init prints what else to set"


def test_plan_begins_with_verdict(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}}')
    large = run("plan", path, *WORLD)
    assert large.returncode == 0 and large.stdout.startswith("Does not fit: ")
    assert run("plan", path, *WORLD, "--fail-if-oom").returncode == 1
    small = ("--model", "gpt2", "--gpus", 2, "--device", "h100", "--seq-len", 128)
    fits = run("plan", path, *small, "--fail-if-oom")
    assert fits.returncode == 0 and fits.stdout.startswith("Fits: ")

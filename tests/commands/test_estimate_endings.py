"""Verdict, table, changes and notes of one ``estimate`` agree, with and without ``--seq-len``."""

import json
from pathlib import Path

import pytest

import command_line

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of {} GiB of which 1.00 GiB is free. Of the allocated memory {} GiB is allocated by "
    "PyTorch\n"
)
MODEL = ("--model", "llama-3-8b", "--gpus", "4")


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "ds.json"
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
    }
    path.write_text(json.dumps(config))
    return str(path)


def shown(*words: str) -> str:
    """Return stdout and stderr with single spaces."""
    done = command_line.run("estimate", *words, columns=120)
    return " ".join(f"{done.stdout}\n{done.stderr}".split())


def test_failed_run_that_fits_without_activations_needs_their_size(
    config: str, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_text(OUT_OF_MEMORY.format("79.15", "74.00"))
    text = shown(config, *MODEL, "--log", str(log))
    assert "Fits without activations" in text
    assert "no change can be suggested: specify --seq-len" in text
    assert "No smaller configuration is known" not in text


def test_failed_run_that_never_fits_gets_changes(config: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(OUT_OF_MEMORY.format("23.64", "21.00"))
    text = shown(config, *MODEL, "--log", str(log))
    assert "Does not fit" in text
    assert "To fit without activations: optimizer to CPU" in text
    assert "no change can be suggested" not in text


def test_nothing_is_written_if_the_config_fits_without_activations(
    config: str, tmp_path: Path
) -> None:
    output = tmp_path / "new.json"
    words = (config, *MODEL, "--device", "a100-80gb", "-o", str(output))
    assert "the config fits without activations; specify --seq-len" in shown(*words)
    assert "the config fits\n" not in shown(*words)


def test_written_change_is_not_followed_by_a_verdict_of_the_old_config(
    config: str, tmp_path: Path
) -> None:
    output = tmp_path / "new.json"
    text = shown(config, *MODEL, "--device", "rtx-4090", "-o", str(output))
    assert "wrote" in text and "exit code 0 although" not in text


def test_table_names_what_it_leaves_out() -> None:
    words = (*MODEL, "--device", "a100-80gb")
    text = shown(*words)
    assert "configurations fit without activations on each A100-SXM4-80GB" in text
    assert "left. Specify --seq-len to include them." in text
    assert "GPU host NVMe fits without activations" in text
    assert "dsconfig tune" not in text, "tune requires --seq-len"
    complete = shown(*words, "--seq-len", "1024", "--micro-batch", "1")
    assert "Run `dsconfig tune`" in complete and "without activations" not in complete


def test_nothing_fits_if_the_host_is_too_small() -> None:
    words = ("--model", "llama-2-7b", "--gpus", "2", "--host-memory", "512MiB")
    for device in ((), ("--device", "rtx-4090")):
        text = shown(*words, *device)
        assert "Nothing fits. Closest: stage 3, optimizer + parameters to CPU: needs " in text
        assert "does not fit:" not in text
        assert "try more GPUs, more --host-memory" in text


def test_adapters_are_offered_until_they_are_used() -> None:
    words = ("--model", "llama-3-70b", "--gpus", "1", "--device", "rtx-3080-10gb")
    activations = ("--seq-len", "2048", "--micro-batch", "1")
    full = shown(*words, *activations)
    assert "try --recompute full (gradient checkpointing), more GPUs" in full
    assert "--lora-rank 16 (LoRA), or that with --base-weights 4bit (QLoRA)" in full
    lora = shown(*words, *activations, "--lora-rank", "16")
    assert "--lora-rank 16" not in lora and "--base-weights 4bit (QLoRA)" in lora
    quantized = ("--lora-rank", "16", "--base-weights", "4bit")
    assert "QLoRA" not in shown(*words, *activations, *quantized)


def test_set_requires_a_file() -> None:
    done = command_line.run("estimate", *MODEL, "--set", "zero_optimization.stage=2")
    assert done.returncode == 2 and "--set requires FILE" in done.stderr

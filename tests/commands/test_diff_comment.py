"""``dsconfig diff --output-format markdown``: the comment for a pull request."""

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import run

FLAGS = ("--model", "llama-3-8b", "--gpus", "8", "--device", "a100-80gb", "--seq-len", "4096")
CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95]}},
    "zero_optimization": {"stage": 3},
}


@pytest.fixture
def compare(tmp_path: Path) -> Any:
    def write(change: dict[str, Any], *flags: object, code: int = 1) -> str:
        (tmp_path / "old.json").write_text(json.dumps(CONFIG))
        (tmp_path / "new.json").write_text(json.dumps({**CONFIG, **change}))
        markdown = ("--output-format", "markdown")
        done = run("diff", "old.json", "new.json", *markdown, *(flags or FLAGS), cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stdout

    return write


def row(text: str, name: str) -> list[str]:
    """Return the cells of a table row."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_comment_shows_what_changes_in_training(compare: Any) -> None:
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}
    optimizer = {"type": "Adam", "params": {"lr": 2e-5}}
    changed = {"gradient_accumulation_steps": 8, "optimizer": optimizer, "scheduler": schedule}
    text = compare({**changed, "bf16": {"enabled": False}, "fp16": {"enabled": True}})
    assert row(text, "Global batch") == ["32 samples", "64 samples"]
    assert row(text, "Micro batch x accumulation x ranks") == ["1 x 4 x 8", "1 x 8 x 8"]
    assert row(text, "Optimizer") == ["adamw (lr 1e-05, betas \\[0.9, 0.95\\])", "adam (lr 2e-05)"]
    assert row(text, "Schedule") == ["none in the config", "WarmupLR (warmup_num_steps 100)"]
    assert row(text, "Loss scale") == ["none", "dynamic from 2^16, window 1000"]
    assert row(text, "Precision")[1].startswith("fp16, ")
    assert "Unchanged: gradient clipping, zero stage, offload" in text


def test_comment_shows_memory_and_time(compare: Any) -> None:
    text = compare({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})
    assert row(text, "Offload") == ["none", "optimizer to CPU"]
    before, after, change = row(text, "Host memory per node")
    assert float(before.split()[0]) < float(after.split()[0]) and change.startswith("+")
    assert row(text, "Step time")[2].startswith("+")
    assert "**Fits: " in text and "left on each A100" in text


def test_each_changed_key_is_listed_once_and_collapsed(compare: Any) -> None:
    text = compare({"gradient_clipping": 0.5, "notes": "a|b<c>`d`"})
    assert "<details><summary>2 changed keys</summary>" in text
    assert row(text, "`gradient_clipping`")[:2] == ["`1`", "`0.5`"]
    assert "<code>&#34;a&#124;b&#60;c&#62;&#96;d&#96;&#34;</code>" in text


def test_new_and_fixed_findings_are_listed(compare: Any) -> None:
    text = compare({"zero_optimization": {"stage": 3, "offload_optimiser": {}}})
    assert "**New findings**" in text and "- error DSC021: " in text
    assert "Training cannot be compared. `new.json`: it has errors." in text


def test_configs_of_equal_meaning_are_one_line(compare: Any) -> None:
    text = compare({"bf16": {"enabled": "true"}}, code=0)
    assert text.splitlines()[0] == "### `new.json`: no differences in meaning"
    assert "| Training |" not in text


def test_without_a_model_the_reason_is_given(compare: Any) -> None:
    text = compare({"gradient_accumulation_steps": 8}, "--gpus", 8)
    assert "Memory and time are not estimated: the model is unknown" in text
    assert row(text, "Global batch") == ["32 samples", "64 samples"]


def test_upgrade_of_deepspeed_is_a_comment_too(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({**CONFIG, "gradient_clipping": 1.0}))
    releases = ("--from-version", "0.9.0", "--to-version", "0.19.8", "--runtime", "deepspeed")
    done = run("diff", "ds.json", *releases, "--output-format", "markdown", *FLAGS, cwd=tmp_path)
    assert "DeepSpeed 0.9.0 \u2192 DeepSpeed 0.19.8" in done.stdout


def test_facts_decide_auto_before_two_files_are_compared(tmp_path: Path) -> None:
    config = {**CONFIG, "bf16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto"}
    auto = {**config, "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"}
    written = {**auto, "train_micro_batch_size_per_gpu": 4}
    for name, config in (("a.json", auto), ("b.json", written)):
        (tmp_path / name).write_text(json.dumps(config))
    flags = ("--runtime", "transformers", "--gpus", 8)
    done = run("diff", "a.json", "b.json", *flags, "--micro-batch", 4, cwd=tmp_path)
    assert "no differences" in done.stdout
    done = run("diff", "a.json", "b.json", *flags, "--micro-batch", 2, cwd=tmp_path)
    assert done.returncode == 1
    assert '"auto" -> 4' in done.stdout and "compared as written" in done.stderr


def test_facts_require_two_files_or_the_comment(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(CONFIG))
    done = run("diff", "a.json", "--from-version", "0.9.0", "--gpus", 8, cwd=tmp_path)
    assert done.returncode == 2
    assert "--gpus: only with two files, or with --output-format markdown" in done.stderr

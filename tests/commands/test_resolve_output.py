"""``dsconfig resolve``: names of sources, ``--explain``, and numbers that JSON cannot represent."""

import json
from pathlib import Path

import pytest

import command_line
from command_line import Done

ZERO = {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}
AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": ZERO,
}


def resolve(folder: Path, text: str, *words: str) -> Done:
    (folder / "ds.json").write_text(text)
    return command_line.run("resolve", "ds.json", "--gpus", "8", *words, cwd=folder)


def test_default_of_an_argument_is_named_as_such(tmp_path: Path) -> None:
    words = ("--model", "llama-3-8b", "--micro-batch", "4")
    done = resolve(tmp_path, json.dumps(AUTO), *words)
    shown = " ".join(done.stdout.split())
    name = "train_micro_batch_size_per_gpu 4 training run"
    assert f"{name} per_device_train_batch_size of TrainingArguments gradient" in shown
    assert "max_grad_norm of TrainingArguments, the default" in shown


def test_explain_of_a_block_lists_what_was_filled_in(tmp_path: Path) -> None:
    words = ("--model", "llama-3-8b", "--explain")
    done = resolve(tmp_path, json.dumps(AUTO), *words, "zero_optimization")
    assert "zero_optimization.reduce_bucket_size = 16,777,216" in done.stdout
    assert "zero_optimization.stage3_prefetch_bucket_size = " in done.stdout
    assert "zero_optimization: all other keys are set in the file" in done.stdout
    unset = resolve(tmp_path, json.dumps(AUTO), *words, "overlap_comm")
    assert "the default applies (see `dsconfig explain" in unset.stdout


@pytest.mark.parametrize("output", ["-", "out.json"])
def test_infinite_interval_is_written_with_a_note(output: str, tmp_path: Path) -> None:
    text = json.dumps(AUTO | {"steps_per_print": float("inf")})
    words = ("--model", "llama-3-8b", "--runtime", "transformers", "-o", output)
    done = resolve(tmp_path, text, *words)
    written = done.stdout if output == "-" else (tmp_path / output).read_text()
    assert done.returncode == 0 and json.loads(written)["steps_per_print"] is None
    assert "steps_per_print: Infinity is not valid JSON; written as null" in done.stderr
    other = resolve(tmp_path, json.dumps(AUTO), *words)
    assert "Infinity" not in other.stderr, "the interval is that of accelerate"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("output", ["-", "out.json"])
def test_number_that_json_cannot_represent_is_not_written(
    number: str, output: str, tmp_path: Path
) -> None:
    text = f'{{"train_batch_size": 8, "gradient_clipping": {number}, "zero_optimization": {{}}}}'
    words = ("--micro-batch", "1", "--accumulation", "1", "--runtime", "accelerate")
    done = resolve(tmp_path, text, *words, "-o", output)
    assert done.returncode == 1 and not (tmp_path / "out.json").exists()
    assert "not written: JSON cannot represent gradient_clipping = " in done.stderr
    data = resolve(tmp_path, text, *words, "--output-format", "json")
    assert "NaN" not in data.stdout and json.loads(data.stdout)["config"]

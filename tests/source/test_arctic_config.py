"""ArcticTraining's YAML, with the batch beside the ``deepspeed`` block."""

from pathlib import Path
from typing import Any

import pytest

import command_line
import dsconfig
from dsconfig.facts import Facts, embedded_facts
from dsconfig.source import arctic_config

RECIPE = """\
type: sft
micro_batch_size: 2
gradient_accumulation_steps: 4
model:
  type: liger
  name_or_path: meta-llama/Llama-3.1-8B-Instruct
deepspeed:
  zero_optimization:
    stage: 3
    reduce_bucket_size: 5e8
data:
  sources: [HuggingFaceH4/ultrachat_200k]
  max_length: 8192
optimizer:
  lr: 1e-5
"""


def read(tmp_path: Path, text: str = RECIPE) -> dsconfig.Document:
    path = tmp_path / "sft.yml"
    path.write_text(text)
    return dsconfig.read(path)


def test_batch_and_precision_are_written_into_the_block(tmp_path: Path) -> None:
    config: Any = read(tmp_path).value
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert config["gradient_accumulation_steps"] == 4
    assert config["zero_optimization"] == {"stage": 3, "reduce_bucket_size": 500_000_000}
    assert config["bf16"] == {"enabled": True} and config["gradient_clipping"] == 1.0


def test_the_batch_beside_the_block_suffices(tmp_path: Path) -> None:
    text = "model: {name_or_path: m}\nmicro_batch_size: 3\ndeepspeed: {}\ndata: {max_length: 512}\n"
    config: Any = read(tmp_path, text).value
    assert config["train_micro_batch_size_per_gpu"] == 3
    config = read(tmp_path, text.replace("micro_batch_size: 3", "batch_size: 3")).value
    assert "train_micro_batch_size_per_gpu" not in config


def test_defaults_apply_to_an_empty_block(tmp_path: Path) -> None:
    text = "model: {name_or_path: m}\ndata: {sources: [d]}\ndeepspeed: {gradient_clipping: 0.5}\n"
    config: Any = read(tmp_path, text).value
    assert config["train_micro_batch_size_per_gpu"] == 1 and config["gradient_clipping"] == 0.5
    assert config["zero_optimization"]["stage"] == 2


@pytest.mark.parametrize(("dtype", "block"), [("fp16", "fp16"), ("bf16", "bf16")])
def test_the_dtype_of_the_model_is_the_precision(tmp_path: Path, dtype: str, block: str) -> None:
    text = RECIPE.replace("  type: liger", f"  dtype: {dtype}")
    config: Any = read(tmp_path, text).value
    assert config[block] == {"enabled": True}
    assert {"bf16", "fp16"} - {block} == {"bf16", "fp16"} - config.keys()


def test_a_finding_is_where_the_value_is_written(tmp_path: Path) -> None:
    text = RECIPE.replace("micro_batch_size: 2", "micro_batch_size: 0")
    report = dsconfig.validate(read(tmp_path, text), runtime="deepspeed")
    pointers = {error.pointer: error.range for error in report.errors}
    found = pointers["/train_micro_batch_size_per_gpu"]
    assert found is not None and found.start.line == 2
    overwritten = text.replace("deepspeed:", "deepspeed:\n  train_micro_batch_size_per_gpu: 7")
    errors = dsconfig.validate(read(tmp_path, overwritten), runtime="deepspeed").errors
    assert [error.range for error in errors] == [found]


def test_the_facts_have_length_and_kernels(tmp_path: Path) -> None:
    facts = embedded_facts.complete(Facts(), read(tmp_path))
    assert facts.sequence_length == 8192
    assert facts.arguments["gradient_checkpointing"] and facts.arguments["use_liger_kernel"]
    kept = embedded_facts.complete(dsconfig.gather(seq_len=512), read(tmp_path))
    assert kept.sequence_length == 512


def test_deepspeed_alone_reads_the_result(tmp_path: Path) -> None:
    read(tmp_path)
    done = command_line.run("validate", "sft.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "inferred from the ArcticTraining YAML" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("written", "number"),
    [("5e8", 500_000_000), ("2b", 2_000_000_000), ("64mi", 64 * 2**20), ("1e-8", 1e-8)],
)
def test_numbers_with_units(written: str, number: float) -> None:
    content: dict[str, Any] = {
        "model": {"name_or_path": "m"},
        "data": {"sources": []},
        "deepspeed": {"zero_optimization": {"sub_group_size": written}},
    }
    config = arctic_config.passed_config(content)
    assert config["zero_optimization"]["sub_group_size"] == pytest.approx(number)
    assert arctic_config.is_arctic(content)


def test_empty_block_has_the_defaults(tmp_path: Path) -> None:
    text = "micro_batch_size: 2\ngradient_accumulation_steps: 4\ndeepspeed: {}\n"
    document = read(tmp_path, text + "model: {name_or_path: m}\ndata: {sources: [d]}\n")
    assert document.value["gradient_accumulation_steps"] == 4
    assert document.value["zero_optimization"]["stage"] == 2
    assert document.container["micro_batch_size"] == 2


def test_other_trainers_are_not_arctic() -> None:
    block = {"zero_optimization": {"stage": 3}}
    assert not arctic_config.is_arctic({"micro_batch_size": 2, "deepspeed": block})
    assert not arctic_config.is_arctic({"model": "m", "data": "d", "deepspeed": block})

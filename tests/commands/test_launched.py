"""``estimate`` of what people launch: one complete answer, and what was read."""

import json
from pathlib import Path
from typing import Any

import pytest

import command_line

DS = {
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8, "allgather_bucket_size": 2e8},
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}
MODEL = "meta-llama/Meta-Llama-3-8B"
FORMS = {
    "axolotl.yaml": f"""
base_model: {MODEL}
adapter: lora
lora_r: 16
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 8
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 1e-4
bf16: true
gradient_checkpointing: true
deepspeed: ds.json
""",
    "factory.yaml": f"""
model_name_or_path: {MODEL}
stage: sft
finetuning_type: lora
lora_rank: 16
lora_target: all
template: llama3
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1e-4
lr_scheduler_type: cosine
bf16: true
deepspeed: ds.json
""",
    "swift.sh": f"""
NPROC_PER_NODE=2 swift sft --model {MODEL} --train_type lora --lora_rank 16 \\
    --target_modules all-linear --torch_dtype bfloat16 --max_length 2048 \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --learning_rate 1e-4 \\
    --deepspeed ds.json
""",
    "trl.sh": f"""
accelerate launch --num_processes 2 -m trl.scripts.sft --model_name_or_path {MODEL} \\
    --use_peft --lora_r 16 --lora_target_modules all-linear --max_length 2048 --bf16 \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps 8 --learning_rate 1e-4 \\
    --lr_scheduler_type cosine --gradient_checkpointing --deepspeed ds.json
""",
}
"""One LoRA job, as four programs read it."""
COMPARED = ("model", "lora", "lora_rank", "base_bits", "precision", "gradient_checkpointing")
SIZES = ("seq_len", "micro_batch", "accumulation", "ranks", "zero_stage", "offload", "packing")


def estimated(folder: Path, name: str, *flags: str) -> dict[str, Any]:
    done = command_line.run(
        "estimate", name, "--device", "rtx-4090", "--output-format", "json", *flags, cwd=folder
    )
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ds.json").write_text(json.dumps(DS))
    for name, text in FORMS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_one_job_has_one_answer_in_four_forms(folder: Path) -> None:
    answers = [estimated(folder, name, "--gpus", "2") for name in FORMS]
    assert answers[0]["options"][0]["device"]["needed_bytes"] > 0
    for other in answers[1:]:
        assert other["options"] == answers[0]["options"]
        for fact in (*COMPARED, *SIZES):
            assert other["facts"][fact]["value"] == answers[0]["facts"][fact]["value"], fact
    assert [each["not_understood"] for each in answers] == [[]] * 4


def test_every_fact_has_an_origin(folder: Path) -> None:
    facts = estimated(folder, "factory.yaml", "--gpus", "2")["facts"]
    assert facts["lora_rank"]["origin"] == {"kind": "file", "source": "factory.yaml:5"}
    assert facts["gradient_checkpointing"]["origin"]["kind"] == "default"
    assert facts["gradient_checkpointing"]["origin"]["source"].startswith("LLaMA-Factory ")
    assert facts["ranks"]["origin"] == {"kind": "flag", "source": "--gpus"}


def test_release_decides_a_default(folder: Path) -> None:
    path = folder / "factory.yaml"
    path.write_text(path.read_text().replace("cutoff_len: 2048\n", ""))
    lengths = [
        estimated(folder, path.name, "--gpus", "2", "--with", f"llamafactory=={release}")
        for release in ("0.8.0", "0.9.4")
    ]
    assert [each["facts"]["seq_len"]["value"] for each in lengths] == [1024, 2048]


def test_answer_starts_with_what_was_read(folder: Path) -> None:
    path = folder / "factory.yaml"
    path.write_text(path.read_text() + "mystery_option: 3\n")
    done = command_line.run(
        "estimate", path.name, "--gpus", "2", "--device", "rtx-4090", cwd=folder
    )
    first, *_ = " ".join(done.stdout.split()).partition(" llama-3-8b: ")
    assert first.startswith("factory.yaml: LLaMA-Factory ")
    assert f"model {MODEL}; lora; lora rank 16" in first and "Defaults: " in first
    assert "Not understood: mystery_option (factory.yaml:15)" in first


def test_without_deepspeed_there_are_facts_and_no_estimate(folder: Path) -> None:
    path = folder / "axolotl.yaml"
    path.write_text(path.read_text().replace("deepspeed: ds.json\n", ""))
    data = estimated(folder, path.name, "--gpus", "2")
    assert data["options"] == [] and data["facts"]["zero_stage"]["value"] == "none"
    assert "without DeepSpeed" in data["diagnostics"][0]["message"]


def test_unknown_model_leaves_the_other_facts(folder: Path) -> None:
    path = folder / "axolotl.yaml"
    path.write_text(path.read_text().replace(MODEL, "acme/rocket-8b"))
    data = estimated(folder, path.name, "--gpus", "2")
    assert data["options"] == [] and data["facts"]["model"]["value"] == "acme/rocket-8b"
    assert "acme/rocket-8b" in data["diagnostics"][0]["message"]
    assert "config.json" in data["diagnostics"][0]["message"]


def test_training_arguments_replace_the_config_of_accelerate(tmp_path: Path) -> None:
    for stage in (2, 3):
        zero = {"zero_optimization": {"stage": stage}}
        (tmp_path / f"ds{stage}.json").write_text(json.dumps(DS | zero))
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\n"
        "deepspeed_config: {deepspeed_config_file: ds2.json, zero3_init_flag: false}\n"
    )
    arguments = {"output_dir": "o", "deepspeed": "ds3.json", "bf16": True}
    (tmp_path / "args.json").write_text(json.dumps(arguments))
    flags = ("acc.yaml", "--training-args", "args.json")
    checked = command_line.run("validate", *flags, cwd=tmp_path)
    assert "ds3.json: target: transformers" in checked.stderr
    resolved = command_line.run("resolve", *flags, "--output-format", "json", cwd=tmp_path)
    assert json.loads(resolved.stdout)["config"]["zero_optimization"]["stage"] == 3
    assert "TrainingArguments name ds3.json" in " ".join(resolved.stderr.split())


def test_launch_that_turns_deepspeed_off_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {zero_stage: 2}\n"
    )
    script = tmp_path / "run.sh"
    for flag, is_off in (("--multi_gpu ", True), ("", False)):
        script.write_text(f"accelerate launch --config_file acc.yaml {flag}train.py --lr 1e-4\n")
        shown = command_line.run("validate", "run.sh", cwd=tmp_path).stdout
        assert ("turns DeepSpeed off" in shown) is is_off


def test_degree_that_is_not_estimated_is_listed(folder: Path) -> None:
    path = folder / "axolotl.yaml"
    path.write_text(path.read_text() + "context_parallel_size: 2\n")
    (listed,) = estimated(folder, path.name, "--gpus", "2")["not_understood"]
    assert listed["key"] == "sequence_parallel" and "not estimated" in listed["source"]


@pytest.mark.parametrize(
    "aliases",
    [
        "a: &x {b: *x}\n",
        "a0: &a0 {x: 1}\n"
        + "".join(
            f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(12))}}}\n"
            for i in range(1, 9)
        ),
    ],
    ids=["recursive", "expanding"],
)
def test_aliases_without_end_are_an_error(folder: Path, aliases: str) -> None:
    path = folder / "axolotl.yaml"
    path.write_text(aliases + path.read_text())
    for command in ("validate", "estimate"):
        done = command_line.run(command, path.name, "--gpus", "2", cwd=folder)
        assert "alias" in done.stdout + done.stderr and "internal error" not in done.stderr
        assert done.returncode in (1, 2)

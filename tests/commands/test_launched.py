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


def test_standard_input_is_read_once(tmp_path: Path) -> None:
    text = json.dumps(DS)
    (tmp_path / "ds.json").write_text(text)
    flags = ("--params", "7e9", "--gpus", "2", "--device", "rtx-4090", "--output-format", "json")
    piped = command_line.run("estimate", "-", *flags, cwd=tmp_path, stdin=text)
    named = command_line.run("estimate", "ds.json", *flags, cwd=tmp_path)
    assert json.loads(piped.stdout)["options"] == json.loads(named.stdout)["options"]


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
    config = json.loads(resolved.stdout)["config"]
    assert config["zero_optimization"]["stage"] == 3
    assert config["train_batch_size"] == 2 * config["train_micro_batch_size_per_gpu"]
    assert "TrainingArguments name ds3.json" in " ".join(resolved.stderr.split())


def test_launch_that_turns_deepspeed_off_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {zero_stage: 2}\n"
    )
    script = tmp_path / "run.sh"
    for flag, is_off in (("--multi_gpu ", True), ("", False)):
        arguments = "--model_name_or_path m --learning_rate 1e-5 --per_device_train_batch_size 1"
        command = f"accelerate launch --config_file acc.yaml {flag}train.py {arguments}"
        script.write_text(f"{command}\n")
        shown = command_line.run("validate", "run.sh", cwd=tmp_path).stdout
        assert ("turns DeepSpeed off" in shown) is is_off
        assert "the program stops" not in shown


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


def validated(folder: Path, name: str) -> Any:
    done = command_line.run("validate", name, "--output-format", "json", cwd=folder)
    (file,) = json.loads(done.stdout)["files"]
    return file


def test_unknown_model_is_not_an_error_of_its_config(folder: Path) -> None:
    buckets = {"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage": 3}
    (folder / "ds.json").write_text(json.dumps(DS | {"zero_optimization": buckets}))
    path = folder / "factory.yaml"
    path.write_text(path.read_text().replace(MODEL, "acme/rocket-8b"))
    assert validated(folder, path.name)["valid"]
    resolved = command_line.run("resolve", path.name, "--gpus", "2", cwd=folder)
    assert "hidden_size of acme/rocket-8b, which is not known" in " ".join(resolved.stdout.split())


CHAT = "deepspeed training/step1_supervised_finetuning/main.py --zero_stage 3 --deepspeed"
OPEN = (
    "accelerate launch --use_deepspeed --deepspeed_config_file ds.json "
    "open_instruct/finetune.py --dataset_mixer_list a 1.0"
)


@pytest.mark.parametrize(
    ("command", "runtime"), [(CHAT, "deepspeed"), (OPEN, "accelerate"), ("", "transformers")]
)
def test_launched_program_decides_who_reads_the_config(
    folder: Path, command: str, runtime: str
) -> None:
    name = "run.sh" if command else "trl.sh"
    if command:
        (folder / name).write_text(f"{command} --model_name_or_path {MODEL}\n")
    found = validated(folder, name)
    assert found["runtime"] == runtime and found["valid"]


def test_default_precision_equal_to_that_of_a_shipped_config_is_accepted(folder: Path) -> None:
    (folder / "run.sh").write_text(
        f"trl sft --model_name_or_path {MODEL} --accelerate_config zero3 --num_processes 4\n"
    )
    assert validated(folder, "run.sh")["valid"]


def test_config_that_only_the_run_knows_is_not_taken_for_none(folder: Path) -> None:
    path = folder / "swift.sh"
    for written, is_known in (("$DS_CONFIG", False), ("", True)):
        option = f" --deepspeed {written}" if written else ""
        path.write_text(FORMS["swift.sh"].replace(" --deepspeed ds.json", option))
        (found,) = validated(folder, path.name)["diagnostics"]
        assert found["severity"] == "info"
        assert ("at run time" in found["message"]) is not is_known
        facts = estimated(folder, path.name)["facts"]
        assert ("zero_stage" in facts) is is_known


def test_arguments_are_those_of_the_release_that_a_program_uses(folder: Path) -> None:
    (folder / "run.sh").write_text(
        "deepspeed fastchat/train/train.py --model_name_or_path lmsys/vicuna-7b-v1.5 "
        "--evaluation_strategy no --warmup_ratio 0.03 --deepspeed ds.json\n"
    )
    codes = [each["code"] for each in validated(folder, "run.sh")["diagnostics"]]
    assert "DSC707" not in codes


def test_directory_is_searched_for_what_launches_a_run(folder: Path) -> None:
    (folder / "notes.json").write_text("{}")
    form = ("--gpus", "2", "--output-format", "json")
    shown = command_line.run("estimate", ".", *form, cwd=folder)
    notes = " ".join(shown.stderr.split())
    assert ".: using swift.sh; also found: trl.sh, axolotl.yaml, factory.yaml" in notes
    named = command_line.run("estimate", "swift.sh", *form, cwd=folder)
    assert json.loads(shown.stdout)["options"] == json.loads(named.stdout)["options"]
    for name in FORMS:
        (folder / name).unlink()
    for command in ("resolve", "plan"):
        assert ".: using ds.json" in command_line.run(command, ".", cwd=folder).stderr
    (folder / "ds.json").unlink()
    done = command_line.run("estimate", ".", cwd=folder)
    assert done.returncode == 2 and "no launch file or config" in done.stderr


@pytest.mark.parametrize(("blank", "is_found"), [(" ", True), ("\t ", True), ("", False)])
def test_blank_after_a_backslash_is_an_error(folder: Path, blank: str, is_found: bool) -> None:
    text = f"deepspeed train.py --bf16 True --deepspeed ds.json \\{blank}\n  --warmup_steps 3\n"
    (folder / "run.sh").write_text(text)
    for command in ("validate", "resolve"):
        shown = command_line.run(command, "run.sh", cwd=folder).stdout
        assert ("error[DSC014]" in shown and "run.sh:1" in shown) is is_found


def test_blank_after_a_backslash_leaves_the_config_of_the_program(folder: Path) -> None:
    (folder / "dpo.sh").write_text("trl dpo --model_name_or_path gpt2 \\ \n  --bf16 true\n")
    shown = command_line.run("validate", "dpo.sh", cwd=folder).stdout
    assert "error[DSC014]" in shown and "error[DSC009]" not in shown


def test_backslash_in_other_text_is_accepted(folder: Path) -> None:
    text = "# a \\ \n- b\ncat > notes <<X\n a \\ \n text\nX\ndeepspeed t.py --deepspeed ds.json\n"
    (folder / "run.sh").write_text(text)
    assert validated(folder, "run.sh")["valid"]


def test_models_beside_the_trained_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "p.sh").write_text(
        "python3 -m openrlhf.cli.train_ppo_ray --pretrain lab/p --reward_pretrain lab/r "
        "--colocate_all_models --vllm_gpu_memory_utilization 0.6 --bf16\n"
    )
    done = command_line.run("estimate", "p.sh", "--device", "h100", cwd=tmp_path)
    text = " ".join(done.stdout.split())
    assert "reference model lab/p; reward model lab/r; critic model lab/r" in text
    assert "reward_model (p.sh:1, lab/r: not estimated)" in text
    assert "reference_model (p.sh" not in text and "engine_memory (p.sh" not in text


def test_reference_model_and_pairs_of_a_launch_are_estimated(folder: Path) -> None:
    command = (
        f"accelerate launch --num_processes 2 -m trl.scripts.dpo --model_name_or_path {MODEL} "
        "--bf16 --max_length 1024 --per_device_train_batch_size 1 --learning_rate 1e-6 "
        "--deepspeed ds.json"
    )
    (folder / "run.sh").write_text(command)
    found = estimated(folder, "run.sh")
    parts = {each["name"]: each["bytes"] for each in found["options"][0]["device"]["components"]}
    assert parts["frozen copies"] == parts["weights"]
    (folder / "run.sh").write_text(command + " --precompute_ref_log_probs")
    alone = estimated(folder, "run.sh")["options"][0]["device"]["components"]
    assert "frozen copies" not in {each["name"] for each in alone}
    flags = ("--model", MODEL, "--seq-len", "1024", "--micro-batch", "2", "--gpus", "2")
    (folder / "alone").mkdir()
    (folder / "alone" / "ds.json").write_text((folder / "ds.json").read_text())
    single = estimated(
        folder / "alone", "ds.json", *flags, "--precision", "bf16", "--recompute", "full"
    )
    kept = {each["name"]: each["bytes"] for each in single["options"][0]["device"]["components"]}
    assert parts["activations"] == kept["activations"]


@pytest.mark.parametrize("name", ["fsdp.yaml", "fsdp.json"])
def test_accelerate_config_of_fsdp_gives_facts(name: str, tmp_path: Path) -> None:
    config = {"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": {}}
    (tmp_path / name).write_text(json.dumps(config))
    (tmp_path / "t.sh").write_text(
        f"accelerate launch --config_file {name} swift/cli/sft.py --model lab/m --max_length 600\n"
    )
    done = command_line.run("estimate", "t.sh", "--output-format", "json", cwd=tmp_path)
    facts = json.loads(done.stdout)["facts"]
    values = {key: facts[key]["value"] for key in ("zero_stage", "ranks", "seq_len")}
    assert values == {"zero_stage": "none", "ranks": 2, "seq_len": 600}

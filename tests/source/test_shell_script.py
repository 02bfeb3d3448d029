"""Options and ranks of the training command in shell scripts and Slurm jobs."""

import json
from pathlib import Path
from typing import Any

import pytest

import command_line
import dsconfig
from dsconfig.facts import FactError, gather
from dsconfig.source.shell_script import LAUNCH, training_command
from narrowing import not_none

SLURM = """\
#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --gres=gpu:a100:8
export NCCL_DEBUG=INFO
MODEL=meta-llama/Llama-3.1-8B   # the model
ARGS=(
  --learning_rate 2e-5   # of AdamW
  --warmup_steps 10
)
pip install deepspeed
cat > other.sh <<EOF
deepspeed train.py --deepspeed other.json
EOF
srun torchrun --nproc_per_node $SLURM_GPUS_ON_NODE --nnodes=$SLURM_NNODES \\
    train.py \\
    --model_name_or_path "$MODEL" --bf16 \\
    --per_device_train_batch_size=4 --gradient-accumulation-steps 8 \\
    --output_dir "$1/out" \\
    --deepspeed ds.json "${ARGS[@]}" && echo done
"""
AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
}


def content(text: str) -> dict[str, Any]:
    return dict(not_none(training_command(text)).content)


def test_options_variables_and_arrays_of_a_slurm_job() -> None:
    assert content(SLURM) == {
        "model_name_or_path": "meta-llama/Llama-3.1-8B",
        "bf16": True,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "learning_rate": 2e-5,
        "warmup_steps": 10,
        "deepspeed": "ds.json",
        LAUNCH: {"gpus": 16, "nodes": 2},
    }


@pytest.mark.parametrize(
    ("command", "launch"),
    [
        ("deepspeed --num_gpus=4 train.py --bf16", {"gpus": 4}),
        ("deepspeed --num_gpus 4 --num_nodes 2 train.py", {"gpus": 8, "nodes": 2}),
        ("deepspeed --include localhost:0,1,3 train.py", {"gpus": 3}),
        ("deepspeed train.py", {}),
        ("torchrun --nproc-per-node 8 --nnodes 4 train.py", {"gpus": 32, "nodes": 4}),
        ("python3 -m torch.distributed.run --nproc_per_node=2 train.py", {"gpus": 2}),
        ("N=4\naccelerate launch --num_processes $((N*2)) train.py", {"gpus": 8}),
        ("GPUS=${GPUS:-8}\ntorchrun --nproc_per_node ${GPUS} train.py", {"gpus": 8}),
        ('A="--num_gpus 2"\ndeepspeed $A train.py', {"gpus": 2}),
        ("torchrun --nproc_per_node $1 train.py", {}),
        ("#SBATCH -N 3\n#SBATCH --ntasks-per-node=4\nsrun python train.py --x 1", {"gpus": 12}),
        ("if true; then\n  CUDA_VISIBLE_DEVICES=0 deepspeed --num_gpus 1 t.py; fi", {"gpus": 1}),
    ],
)
def test_ranks_of_launchers(command: str, launch: dict[str, int]) -> None:
    found = content(command)[LAUNCH]
    assert {name: found.get(name) for name in launch} == launch and (launch or not found)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--bf16 true --fp16 False", {"bf16": True, "fp16": False}),
        ("--a -1e-4 --b", {"a": -1e-4, "b": True}),
        ("--name 'two words' --c=\"x y\"", {"name": "two words", "c": "x y"}),
        ("--out $(date) --d 1", {"d": 1}),
        ("--deepspeed --deepspeed_config ds.json", {"deepspeed_config": "ds.json"}),
        ("a.b.c=3 +a.b.d=x", {"a": {"b": {"c": 3, "d": "x"}}}),
        ("--e 1 # --f 2", {"e": 1}),
    ],
)
def test_values_of_options(options: str, expected: dict[str, Any]) -> None:
    found = content(f"deepspeed train.py {options}")
    assert {name: value for name, value in found.items() if name != LAUNCH} == expected


@pytest.mark.parametrize(
    "text",
    [
        "A=x\n" + "A=$A$A\n" * 60 + "deepspeed t.py --a $A",
        "A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60 + 'deepspeed t.py --a "${A[@]}"',
        "deepspeed t.py " + ".".join("a" * 5000) + "=1 --b " + "9" * 5000,
        "deepspeed t.py --a 'no end",
        "deepspeed t.py --a $(no end ${b",
        "A=(no end",
    ],
    ids=["doubling", "doubling array", "deep", "quote", "substitution", "array"],
)
def test_hostile_scripts_are_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(text)
    assert dsconfig.validate(path).diagnostics
    assert len(str(training_command(text))) < 2**20


def test_command_that_passes_a_config_is_preferred() -> None:
    text = "python -m pip install x\npython prepare.py --y 1\ntorchrun a.py\ndeepspeed b.py"
    assert training_command("echo deepspeed") is None
    assert "y" not in content(text)
    assert content(f"{text} --deepspeed c.json")["deepspeed"] == "c.json"


def test_script_is_validated_and_resolved(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(AUTO | {"gradient_clippin": 1}))
    (tmp_path / "train.slurm").write_text(SLURM.replace("--warmup_steps 10", "--warmup_ratio 0.1"))
    done = command_line.run("validate", "train.slurm", cwd=tmp_path)
    assert "DSC021" in done.stdout and "ds.json:1:" in done.stdout
    assert "train.slurm:9:" in done.stdout and "warmup_ratio" in done.stdout
    assert "inferred from the trainer script" in done.stderr
    document = dsconfig.read(tmp_path / "train.slurm")
    resolution = dsconfig.resolve(document, runtime="transformers")
    assert resolution.config["train_batch_size"] == 4 * 8 * 16


def test_script_gives_training_arguments_and_ranks(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SLURM)
    facts = gather(training_args=path)
    assert (facts.world_size, facts.nodes, facts.arguments["bf16"]) == (16, 2, True)
    assert not_none(facts.training).micro_batch_size == 4 and LAUNCH not in facts.arguments
    assert facts.origins["world_size"] == "training_args="
    assert gather(training_args=path, gpus=8).world_size == 8
    path.write_text("echo nothing")
    with pytest.raises(FactError, match="no command that starts a training program"):
        gather(training_args=path)


def test_script_of_openrlhf_builds_a_config(tmp_path: Path) -> None:
    path = tmp_path / "sft.sh"
    options = "--ds.zero_stage 9 --train.micro_batch_size 4 --train.batch_size 64"
    path.write_text(f"deepspeed --module openrlhf.cli.train_sft {options}\n")
    (error,) = dsconfig.validate(path, runtime="deepspeed").refusals
    assert error.pointer == "/zero_optimization/stage"
    assert not_none(error.range).start.column == path.read_text().index("9") + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("deepspeed train.py --bf16", "no command of this script passes a ds_config"),
        ("deepspeed train.py --deepspeed missing.json", "'missing.json' not found"),
    ],
)
def test_script_without_a_config(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(text)
    (found,) = dsconfig.validate(path).diagnostics
    assert message in found.message


def test_script_launched_with_an_accelerate_config(tmp_path: Path) -> None:
    launch = "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {zero_stage: 3}\n"
    (tmp_path / "acc.yaml").write_text(launch)
    path = tmp_path / "train.sh"
    path.write_text("accelerate launch --config_file acc.yaml train.py --lr 1")
    assert dsconfig.read(path).value["zero_optimization"]["stage"] == 3


ARGUMENTS = "per_device_train_batch_size: 2\nbf16: true\ndeepspeed: ds.json\n"


@pytest.mark.parametrize(
    ("command", "micro_batch", "gpus"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1,2 llamafactory-cli train lf.yaml", 2, 3),
        ("NNODES=2 NPROC_PER_NODE=4 llamafactory-cli train lf.yaml bf16=true", 2, 8),
        ("llamafactory-cli train lf.yaml per_device_train_batch_size=1", 1, None),
        ("CUDA_VISIBLE_DEVICES=0,1 axolotl train lf.yaml --deepspeed ds.json", 2, 2),
        ("accelerate launch --num_processes 2 -m axolotl.cli.train lf.yaml", 2, 2),
        (
            "export NPROC_PER_NODE=8\nswift sft --per_device_train_batch_size 4 "
            "--deepspeed ds.json",
            4,
            8,
        ),
        ("CUDA_VISIBLE_DEVICES=0,1 swift sft --deepspeed ds.json --bf16 true", None, None),
        ("torchrun --nproc_per_node 4 src/train.py lf.yaml", 2, 4),
        ("trl sft --config lf.yaml", 2, None),
    ],
)
def test_training_programs_with_a_file_of_arguments(
    command: str, micro_batch: int | None, gpus: int | None, tmp_path: Path
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(AUTO))
    (tmp_path / "lf.yaml").write_text(ARGUMENTS)
    path = tmp_path / "train.sh"
    path.write_text(command)
    document = dsconfig.read(path)
    assert document.value == AUTO
    assert document.container.get("per_device_train_batch_size") == micro_batch
    assert document.container[LAUNCH].get("gpus") == gpus
    facts = gather(training_args=path)
    assert facts.world_size == gpus
    assert facts.arguments.get("per_device_train_batch_size") == micro_batch


def test_commands_that_do_not_train_are_skipped() -> None:
    assert training_command("llamafactory-cli export a.yaml\nswift infer --model x") is None


@pytest.mark.parametrize(
    "command", ["cat > ds.json <<'EOF'", "cat <<EOF > ds.json", "cat << EOF | tee ds.json"]
)
def test_config_written_by_the_script(command: str, tmp_path: Path) -> None:
    body = '{\n  "train_batch_size": 8,\n  "zero_optimization": {"stage": 9}\n}'
    path = tmp_path / "train.sh"
    path.write_text(f"{command}\n{body}\nEOF\ndeepspeed t.py --deepspeed_config ds.json")
    (error,) = dsconfig.validate(path, runtime="deepspeed").refusals
    assert error.pointer == "/zero_optimization/stage"
    assert not_none(error.range).start.line == 4


def test_variables_in_a_config_written_by_the_script(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    body = '{"train_micro_batch_size_per_gpu": $BS, "steps_per_print": ${N}, "a": "$X/y"}'
    command = "deepspeed t.py --deepspeed ds.json"
    path.write_text(f"BS=4\ncat > ds.json <<EOF\n{body}\nEOF\n{command}")
    document = dsconfig.read(path)
    assert document.value["train_micro_batch_size_per_gpu"] == 4
    assert document.placeholders == {"/steps_per_print", "/a"}
    path.write_text(f'BS=4\ncat > ds.json <<\'EOF\'\n{{"a": "$BS"}}\nEOF\n{command}')
    assert dsconfig.read(path).value == {"a": "$BS"}


def test_accelerate_config_written_by_the_script(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    body = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3"
    command = "accelerate launch --config_file a.yaml t.py --x 1"
    path.write_text(f"cat > a.yaml <<EOF\n{body}\nEOF\n{command}")
    assert dsconfig.read(path).value["zero_optimization"]["stage"] == 3


@pytest.mark.parametrize(
    ("options", "stage", "clipping"),
    [
        ("--use_deepspeed --zero_stage 3", 3, "auto"),
        ("--use_deepspeed", 2, "auto"),
        ("--config_file acc.yaml --zero_stage 1", 1, 0.5),
        ("--config_file acc.yaml --gradient_clipping 1.0", 2, 1.0),
    ],
)
def test_options_of_accelerate_launch_build_a_config(
    options: str, stage: int, clipping: float | str, tmp_path: Path
) -> None:
    settings = "deepspeed_config: {zero_stage: 2, gradient_clipping: 0.5}"
    (tmp_path / "acc.yaml").write_text(f"distributed_type: DEEPSPEED\n{settings}\n")
    path = tmp_path / "train.sh"
    path.write_text(f"accelerate launch {options} --mixed_precision bf16 train.py --lr 1")
    document = dsconfig.read(path)
    assert document.value["zero_optimization"]["stage"] == stage
    assert document.value["gradient_clipping"] == clipping and document.is_generated


def test_stage_without_use_deepspeed_has_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("accelerate launch --zero_stage 3 train.py --lr 1")
    (found,) = dsconfig.validate(path).diagnostics
    assert "no command of this script passes a ds_config" in found.message

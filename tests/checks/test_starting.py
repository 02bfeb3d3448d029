"""What starts a run: contradictions are found, overrides that people make on purpose are not."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig import opening
from narrowing import not_none

A = "auto"
CONFIGS: dict[str, dict[str, Any]] = {
    "ds.json": {
        "train_micro_batch_size_per_gpu": A,
        "bf16": {"enabled": A},
        "zero_optimization": {"stage": 2},
    },
    "open.json": {
        "train_micro_batch_size_per_gpu": A,
        "gradient_clipping": A,
        "bf16": {"enabled": A},
        "zero_optimization": {"stage": A},
    },
}
YAMLS = {
    "block.yaml": "{distributed_type: DEEPSPEED, num_processes: 8, num_machines: 1, "
    "deepspeed_config: {zero_stage: 2}}",
    "named.yaml": "{distributed_type: DEEPSPEED, num_processes: 8, num_machines: 1, "
    "deepspeed_config: {deepspeed_config_file: open.json}}",
    "mixed.yaml": "{distributed_type: DEEPSPEED, num_processes: 8, mixed_precision: bf16, "
    "deepspeed_config: {deepspeed_config_file: open.json}}",
    "ddp.yaml": "{distributed_type: MULTI_GPU, mixed_precision: bf16, num_processes: 8}",
    "fsdp.yaml": "{distributed_type: FSDP, num_processes: 8, fsdp_config: {}}",
    "two.yaml": "{distributed_type: DEEPSPEED, num_processes: 16, num_machines: 2, "
    "deepspeed_config: {zero_stage: 2}}",
    "sft.yaml": "{model_name_or_path: a/b, stage: sft, deepspeed: ds.json, output_dir: o}",
    "lora.yaml": "{model_name_or_path: a/b, stage: sft, output_dir: o}",
    "odd.yaml": "{distributed_type: DEEPSPEED, num_processes: 7, num_machines: 2, "
    "deepspeed_config: {zero_stage: 2, deepspeed_multinode_launcher: standard}}",
}
ARGS = "--output_dir out --per_device_train_batch_size 1 --bf16"
TRAIN = f"train.py --deepspeed ds.json {ARGS}"
BATCH = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\n"
FOUND = [
    (f"CUDA_VISIBLE_DEVICES=4,5 deepspeed --num_gpus 2 {TRAIN}", "DSC710"),
    (f"export CUDA_VISIBLE_DEVICES=0,1\ndeepspeed --num_gpus 4 {TRAIN}", "DSC710"),
    (f"CUDA_VISIBLE_DEVICES=4,5 deepspeed --include localhost:0,1 {TRAIN}", "DSC710"),
    (f"CUDA_VISIBLE_DEVICES=0,2 deepspeed --num_gpus 2 {TRAIN}", "DSC710"),
    (
        f"CUDA_VISIBLE_DEVICES=4,5 accelerate launch --gpu_ids 0,1 --num_processes 2 {TRAIN}",
        "DSC710",
    ),
    (f"{BATCH}srun torchrun --nproc_per_node 8 {TRAIN}", "DSC711"),
    (f"{BATCH}torchrun --nproc_per_node 8 {TRAIN}", "DSC711"),
    (f"{BATCH}srun accelerate launch --config_file named.yaml train.py {ARGS}", "DSC711"),
    (f"{BATCH}deepspeed {TRAIN}", "DSC711"),
    (f"#SBATCH --gres=gpu:4\naccelerate launch --config_file named.yaml train.py {ARGS}", "DSC712"),
    (f"CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 4 {TRAIN}", "DSC712"),
    (f"#SBATCH --ntasks-per-node=8\nsrun torchrun --nproc_per_node 8 {TRAIN}", "DSC712"),
    ("CUDA_VISIBLE_DEVICES=0,1 swift sft --model a/b --deepspeed zero3", "DSC712"),
    (f"accelerate launch --use_deepspeed --multi_gpu --num_processes 8 {TRAIN}", "DSC713"),
    (f"accelerate launch --config_file fsdp.yaml {TRAIN}", "DSC713"),
    (f"accelerate launch --config_file named.yaml {TRAIN}", "DSC714"),
    (f"accelerate launch --config_file block.yaml {TRAIN}", "DSC704"),
    (f"accelerate launch --config_file mixed.yaml train.py {ARGS}", "DSC704"),
    (
        "accelerate launch --use_deepspeed --zero_stage 3 --deepspeed_config_file ds.json "
        f"--num_processes 8 train.py {ARGS}",
        "DSC714",
    ),
    (f"deepspeed --num_gpus 2 {TRAIN} --learning_rate 1e-4 --learning_rate 1e-5", "DSC715"),
    (f"accelerate launch --config_file ddp.yaml {TRAIN.removesuffix(' --bf16')}", "DSC716"),
    (f"accelerate launch --config_file two.yaml train.py {ARGS}", "DSC705"),
    (f"accelerate launch --config_file odd.yaml train.py {ARGS}", "DSC705"),
    (f"deepspeed --include localhost:0,1 --num_gpus 2 {TRAIN}", "DSC717"),
    (f"deepspeed --include a --exclude b {TRAIN}", "DSC717"),
    ("FORCE_TORCHRUN=1 llamafactory-cli train sft.yaml --learning_rate 1e-4", "DSC717"),
    ("CUDA_VISIBLE_DEVICES=0 llamafactory-cli train sft.yaml", "DSC717"),
]
NODES = "N=$(scontrol show hostnames | wc -l)\n"
ON_PURPOSE = [
    f"CUDA_VISIBLE_DEVICES=0,1,2,3 deepspeed --num_gpus 2 {TRAIN}",
    f"CUDA_VISIBLE_DEVICES=0,1,2,3 deepspeed --include localhost:0,1 {TRAIN}",
    f"{BATCH}{NODES}srun accelerate launch --num_machines $N --num_processes $((N*8)) {TRAIN}",
    f"{BATCH}srun accelerate launch --config_file $CFG --num_processes 16 train.py {ARGS}",
    f"{BATCH}#SBATCH --ntasks-per-node=8\nsrun -N1 -n1 torchrun --nproc_per_node 8 {TRAIN}",
    f"#SBATCH --gres=gpu:4,nvme:1\ntorchrun --nproc_per_node 4 {TRAIN}",
    f"accelerate launch --config_file two.yaml --deepspeed_hostfile $H train.py {ARGS}",
    f"accelerate launch --config_file named.yaml --mixed_precision $MP train.py {ARGS}",
    f"accelerate launch --config_file --num_processes 2 {TRAIN}",
    f"deepspeed --num_gpus 2 {TRAIN} --eval_dataset a --eval_dataset b",
    f"CUDA_VISIBLE_DEVICES=0,1 deepspeed --num_gpus 2 {TRAIN}",
    f"CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc_per_node 2 {TRAIN}",
    f"accelerate launch --config_file named.yaml --num_processes 4 train.py {ARGS}",
    f"accelerate launch --config_file named.yaml --mixed_precision bf16 train.py {ARGS}",
    f"accelerate launch --config_file ddp.yaml {TRAIN}",
    f"{BATCH}srun torchrun --nnodes 2 --nproc_per_node 8 {TRAIN}",
    f"{BATCH}srun --nodes=1 torchrun --nproc_per_node 8 {TRAIN}",
    f"{BATCH}for h in $HOSTS; do ssh $h torchrun --nproc_per_node 8 {TRAIN}; done",
    f"#SBATCH --gres=gpu:8\ntorchrun --nproc_per_node 4 {TRAIN}",
    f'ARGS="--learning_rate 1e-4"\ndeepspeed --num_gpus 2 {TRAIN} $ARGS --learning_rate 1e-5',
    "NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=0,1 swift sft --model a/b --deepspeed zero3",
    "CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train sft.yaml learning_rate=1e-4",
    "FORCE_TORCHRUN=1 CUDA_VISIBLE_DEVICES=0 llamafactory-cli train sft.yaml",
    "CUDA_VISIBLE_DEVICES=0 llamafactory-cli train lora.yaml",
    "llamafactory-cli train --stage sft --deepspeed ds.json --learning_rate 1e-4",
]
CODES = frozenset(("DSC703", "DSC704", "DSC705", *(f"DSC71{number}" for number in range(8))))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, config in CONFIGS.items():
        (tmp_path / name).write_text(json.dumps(config))
    for name, text in YAMLS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def codes(script: str, folder: Path) -> set[str]:
    (folder / "run.sh").write_text(f"{script}\n")
    found = dsconfig.validate(opening.read("run.sh"), runtime="transformers").diagnostics
    return {each.code for each in found} & CODES


@pytest.mark.parametrize(("script", "code"), FOUND)
def test_contradiction_is_found(folder: Path, script: str, code: str) -> None:
    assert code in codes(script, folder)


@pytest.mark.parametrize("script", ON_PURPOSE)
def test_override_on_purpose_is_not_reported(folder: Path, script: str) -> None:
    assert codes(script, folder) == set()


@pytest.mark.parametrize(
    ("command", "clipping", "stage"),
    [
        ("--config_file named.yaml --gradient_clipping 0.3 --zero_stage 1", 0.3, 1),
        ("--config_file named.yaml", 1.0, 2),
    ],
)
def test_options_of_the_launcher_decide_auto(
    folder: Path, command: str, clipping: float, stage: int
) -> None:
    (folder / "run.sh").write_text(f"accelerate launch {command} loop.py --name x\n")
    facts = dsconfig.gather(micro_batch=1)
    result = dsconfig.resolve("run.sh", facts, runtime="accelerate")
    assert result.ok and result.config["gradient_clipping"] == clipping
    assert result.config["zero_optimization"]["stage"] == stage


def test_clipping_of_the_launcher_is_compared_with_the_arguments(folder: Path) -> None:
    launch = "accelerate launch --config_file named.yaml --gradient_clipping 0.3 train.py"
    assert "DSC704" in codes(f"{launch} {ARGS}", folder)
    assert codes(f"{launch} {ARGS} --max_grad_norm 0.3", folder) == set()


def test_variables_turn_deepspeed_on(folder: Path) -> None:
    (folder / "run.sh").write_text(
        "export ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_ZERO_STAGE=3\n"
        f"torchrun --nproc-per-node 4 train.py {ARGS}\n"
    )
    assert codes((folder / "run.sh").read_text(), folder) == set()
    result = dsconfig.resolve("run.sh", runtime="transformers")
    assert result.ok and result.config["zero_optimization"]["stage"] == 3


def test_arguments_name_the_config_that_replaces_a_generated_one(folder: Path) -> None:
    (folder / "args.json").write_text('{"deepspeed": "ds.json", "output_dir": "o", "bf16": true}')
    facts = dsconfig.gather(training_args=folder / "args.json")
    (folder / "acc.yaml").write_text("{distributed_type: DEEPSPEED, num_processes: 8}")
    config = dsconfig.resolve("acc.yaml", facts, runtime="transformers").config
    assert "offload_param" not in config["zero_optimization"]


@pytest.mark.parametrize(
    ("script", "word"),
    [
        (
            "#SBATCH --cpus-per-task=8\naccelerate launch --use_deepspeed --cpu loop.py --x 1",
            "--cpu",
        ),
        (f"deepspeed {TRAIN} --lr_x 1 --lr 2 --lr 3", "--lr"),
    ],
)
def test_contradiction_is_shown_at_its_option(folder: Path, script: str, word: str) -> None:
    (folder / "run.sh").write_text(f"{script}\n")
    found = [each for each in opening.read("run.sh").diagnostics if each.code in CODES]
    place = not_none(found[0].range)
    line = script.split("\n")[place.start.line - 1]
    assert line[place.start.column - 1 : place.end.column - 1] == word


def test_dict_in_code_replaces_the_file_of_the_launcher(folder: Path) -> None:
    (folder / "train.py").write_text(
        "from transformers import TrainingArguments\n"
        'ds = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}}\n'
        'args = TrainingArguments(output_dir="o", deepspeed=ds, per_device_train_batch_size=1)\n'
    )
    (folder / "run.sh").write_text("accelerate launch --config_file named.yaml train.py\n")
    result = dsconfig.resolve("run.sh", runtime="transformers")
    assert result.config["zero_optimization"]["stage"] == 3


TP_CONFIGS = {"plain.json": {}, "tp.json": {"tensor_parallel": {"autotp_size": 2}}}
SWIFT = "NPROC_PER_NODE=8 swift sft --model a/b --deepspeed_autotp_size 4 --deepspeed"
AXOLOTL = "base_model: a/b\nmicro_batch_size: 1\ntensor_parallel_size: 4\ndatasets: [{path: d}]"


@pytest.mark.parametrize(
    ("file", "text", "size", "message"),
    [
        ("run.sh", f"{SWIFT} plain.json", 4, None),
        ("run.sh", f"{SWIFT} tp.json", 4, "is 2, but ms-swift writes 4 (run.sh:1)"),
        ("ax.yml", f"{AXOLOTL}\ndeepspeed: plain.json", 4, None),
        (
            "ax.yml",
            f"{AXOLOTL}\ndeepspeed: tp.json",
            2,
            "axolotl divides the batch by 4 (ax.yml:3)",
        ),
    ],
)
def test_program_writes_into_its_config(
    folder: Path, file: str, text: str, size: int, message: str | None
) -> None:
    for name, config in TP_CONFIGS.items():
        (folder / name).write_text(json.dumps({**CONFIGS["ds.json"], **config}))
    (folder / file).write_text(f"{text}\n")
    found = [each.message for each in opening.read(file).diagnostics if each.code == "DSC714"]
    assert len(found) == (message is not None)
    assert message is None or message in found[0]
    resolved = dsconfig.resolve(file, dsconfig.gather(gpus=8), runtime="transformers")
    assert resolved.config["tensor_parallel"] == {"autotp_size": size}


@pytest.mark.parametrize(("release", "count"), [("1.4.0", 1), ("1.5.0", 0)])
def test_yaml_replaces_options_of_early_accelerate(folder: Path, release: str, count: int) -> None:
    (folder / "run.sh").write_text(
        f"accelerate launch --config_file block.yaml --zero_stage 3 train.py {ARGS}\n"
    )
    facts = dsconfig.gather(releases={"accelerate": release})
    found = dsconfig.validate(opening.read("run.sh"), facts, runtime="transformers").diagnostics
    assert sum("--zero_stage is 3" in each.message for each in found) == count

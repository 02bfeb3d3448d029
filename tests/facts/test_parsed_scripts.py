"""Facts that a Python script decides with the options it parses."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig import opening
from dsconfig.facts import launch_files
from narrowing import not_none

SCRIPT = """\
from dataclasses import dataclass, field
from peft import LoraConfig
from transformers import AutoModelForCausalLM, HfArgumentParser
from transformers import TrainingArguments as Base
from parts import build_adapter

@dataclass
class TrainingArguments(Base):
    use_lora: bool = field(default=False)
    lora_rank: int = field(default=16)
    eager: bool = field(default=False)

@dataclass
class ModelArguments:
    model_id: str = field(default="gpt2")

parser = HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(
    model_args.model_id,
    attn_implementation="flash_attention_2" if not training_args.eager else "eager",
)
if training_args.use_lora and "gpt" not in model_args.model_id:
    config = LoraConfig(r=training_args.lora_rank)
"""
RUN = "torchrun --nproc_per_node 4 train.py --output_dir o --bf16 True"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def facts(folder: Path, command: str, **files: str) -> dict[str, Any]:
    for name, text in {"train.py": SCRIPT, "run.sh": command, **files}.items():
        (folder / name).write_text(text)
    launch = not_none(launch_files.launch_in("run.sh"))
    return {name: found.value for name, found in launch.facts.items()}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {"model": "gpt2", "attention": "flash_attention_2"}),
        ("--eager True", {"attention": "eager"}),
        (
            "--model_id a/b --use_lora True --lora_rank 8",
            {"model": "a/b", "lora": True, "lora_rank": 8},
        ),
        ("--model_id a/b --use_lora True", {"lora": True, "lora_rank": 16}),
    ],
)
def test_options_decide_the_branches_of_a_script(
    folder: Path, options: str, expected: dict[str, Any]
) -> None:
    found = facts(folder, f"{RUN} {options}\n")
    assert {name: found.get(name) for name in expected} == expected


def test_class_of_the_script_replaces_defaults(folder: Path) -> None:
    own = SCRIPT.replace("    use_lora: bool", "    optim: str = 'adafactor'\n    use_lora: bool")
    assert facts(folder, f"{RUN}\n", **{"train.py": own})["optimizer"] == "adafactor"
    changed = facts(folder, f"{RUN} --optim sgd\n", **{"train.py": own})
    assert changed["optimizer"] == "sgd"


OPTIONS = """\
import argparse
from trl import SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--lora", action="store_false")
parser.add_argument("--gc", type=bool, default=True)
parser.add_argument("--size", dest="bs", type=int, default=2)
parser.add_argument("--length", type=int, default=512)
args = parser.parse_args()
class Collator:
    length: int = 128
config = SFTConfig(
    output_dir="o", bf16=True, gradient_checkpointing=args.gc,
    per_device_train_batch_size=args.bs, max_length=args.length,
)
"""


@pytest.mark.parametrize(
    ("options", "more", "expected"),
    [
        ("", "", {"micro_batch": 2, "seq_len": 512}),
        ("--size 8", "", {"micro_batch": 8}),
        ("--gc False", "", {"gradient_checkpointing": None}),  # bool("False") is true
        ("", "if args.lora:\n    args.length = 64\n", {"seq_len": None}),
        ("", "args.bs = 4\n", {"micro_batch": None}),
    ],
)
def test_options_are_converted_as_argparse_does(
    folder: Path, options: str, more: str, expected: dict[str, Any]
) -> None:
    script = OPTIONS.replace("class Collator", f"{more}class Collator")
    command = f"torchrun --nproc_per_node 2 train.py {options}\n"
    found = facts(folder, command, **{"train.py": script})
    assert {name: found.get(name) for name in expected} == expected


def test_adapter_of_a_function_in_another_module(folder: Path) -> None:
    parts = "from peft import LoraConfig\ndef build_adapter(args):\n    return LoraConfig(r=4)\n"
    unused = "def unused(args):\n    return LoraConfig(r=64)\n"
    found = facts(folder, f"{RUN}\n", **{"parts.py": parts + unused})
    assert (found["lora"], found["lora_rank"]) == (True, 4)


def test_script_parses_a_file(folder: Path) -> None:
    script = (
        "import argparse\nfrom transformers import HfArgumentParser, TrainingArguments\n"
        "parser = argparse.ArgumentParser()\n"
        'parser.add_argument("--file", default="other.json")\n'
        "args = parser.parse_args()\n"
        "(args,) = HfArgumentParser((TrainingArguments,)).parse_json_file(json_file=args.file)\n"
    )
    content = {"output_dir": "o", "per_device_train_batch_size": 2, "bf16": True}
    files = {"train.py": script, "args.json": json.dumps(content)}
    found = facts(folder, "torchrun --nproc_per_node 2 train.py --file args.json\n", **files)
    assert (found["micro_batch"], found["precision"]) == (2, "bf16")
    found = facts(folder, "torchrun --nproc_per_node 2 train.py --file $1\n", **files)
    assert "micro_batch" not in found


def test_texts_that_are_grouped_are_packed(folder: Path) -> None:
    mapped = f"{SCRIPT}blocks = data.map(group_texts, batched=True)\n"
    assert facts(folder, f"{RUN}\n", **{"train.py": mapped})["packing"] is True


YAML = """\
distributed_type: DEEPSPEED
num_processes: 8
mixed_precision: bf16
deepspeed_config: {zero_stage: 3, offload_optimizer_device: none}
"""
RECIPE = "model_name_or_path: a/b\nper_device_train_batch_size: 2\nbf16: true\noutput_dir: o\n"


@pytest.mark.parametrize("recipe", [RECIPE, "model_id: a/b\nsome_other: 3\n"])
@pytest.mark.parametrize("given", ["--config r.yaml", "r.yaml"])
def test_yaml_of_arguments_leaves_the_config_of_the_launcher(
    folder: Path, recipe: str, given: str
) -> None:
    (folder / "zero3.yaml").write_text(YAML)
    (folder / "r.yaml").write_text(recipe)
    (folder / "run.sh").write_text(f"accelerate launch --config_file zero3.yaml sft.py {given}\n")
    report = dsconfig.validate(opening.read("run.sh"))
    assert {each.code for each in report.errors} == set()


def test_called_script_writes_the_config(folder: Path) -> None:
    (folder / "inner.sh").write_text(
        'cat > ds.json <<END\n{"train_batch_size": 8, "zero_optimization": {"stage": 2}}\nEND\n'
        f"{RUN} --deepspeed ds.json --mode $1\n"
    )
    found = facts(folder, "bash inner.sh fast\n")
    assert found["zero_stage"] == 2
    assert opening.read("run.sh").value["zero_optimization"] == {"stage": 2}


def test_path_of_the_script_itself(folder: Path) -> None:
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 1}}')
    here = 'HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'
    assert facts(folder, f"{here}{RUN} --deepspeed $HERE/ds.json\n")["zero_stage"] == 1


def test_submitter_multiplies_the_processes(folder: Path) -> None:
    launch = "accelerate launch --num_processes 8 --use_deepspeed --zero_stage 2 finetune.py"
    found = facts(folder, f"python mason.py --num_nodes 2 -- {launch} --output_dir o --bf16\n")
    assert (found["ranks"], found["nodes"]) == (16, 2)


def test_script_of_llamafactory_needs_its_options(folder: Path) -> None:
    (folder / "run.sh").write_text(f"{RUN.replace('train.py', 'my/src/train.py')}\n")
    assert not_none(launch_files.launch_in("run.sh")).program.name == "transformers"
    options = "--stage sft --finetuning_type lora --model_name_or_path a/b"
    (folder / "run.sh").write_text(f"{RUN.replace('train.py', 'src/train.py')} {options}\n")
    assert not_none(launch_files.launch_in("run.sh")).program.name == "llamafactory"

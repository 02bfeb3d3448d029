"""Configs that OpenRLHF and verl build from their options."""

import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig import opening
from dsconfig.facts import Facts, embedded_facts
from dsconfig.project.inference import target_program
from dsconfig.source import option_configs

OPENRLHF = """\
deepspeed --module openrlhf.cli.train_sft --pretrain a/b --dataset d --max_len 2048
"""
PREFIXED = f"""{OPENRLHF.strip()} \\
  --ds.zero_stage 3 --ds.param_dtype bf16 --ds.adam_offload --ds.zpg 4 --ds.ring_attn_size 2 \\
  --train.micro_batch_size 2 \\
  --train.batch_size 128 --model.gradient_checkpointing_enable --data.max_len 2048 \\
  --max_norm 0.5
"""
FLAT = f"""{OPENRLHF.strip()} \\
  --zero_stage 3 --param_dtype bf16 --adam_offload --zpg 4 --ring_attn_size 2 \\
  --micro_train_batch_size 2 \\
  --train_batch_size 128 --gradient_checkpointing --max_norm 0.5
"""
VERL = """\
model: {path: Qwen/Qwen3-8B}
engine:
  strategy: deepspeed
  zero_stage: 3
  offload: cpu
  dtype: bfloat16
  micro_batch_size_per_gpu: 4
  gradient_accumulation_steps: 2
optim: {lr: 1e-5, weight_decay: 0.01, clip_grad: 1.0}
"""


def read(tmp_path: Path, text: str, name: str = "train.yaml") -> dsconfig.Document:
    path = tmp_path / name
    path.write_text(text)
    return dsconfig.read(path)


@pytest.mark.parametrize("text", [PREFIXED, FLAT])
def test_options_of_openrlhf_build_its_config(tmp_path: Path, text: str) -> None:
    document = read(tmp_path, text, "train.sh")
    assert document.value == {
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 256,  # 128 times the ring of 2
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "offload_param": {"device": "none"},
            "reduce_scatter": True,
            "zero_hpz_partition_size": 4,
        },
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "gradient_clipping": 0.5,
        "steps_per_print": 100,
    }
    facts = embedded_facts.complete(Facts(), document)
    assert facts.training is not None and facts.training.sequence_length == 2048
    assert facts.arguments["gradient_checkpointing"] is True


@pytest.mark.parametrize(
    ("options", "release", "path", "value"),
    [
        ("--zero_stage 1", "0.9.1", "bf16", {"enabled": False}),
        ("--zero_stage 1", "0.10.1", "bf16", {"enabled": True}),
        ("--zero_stage 1", "0.10.1", "train_batch_size", 128),
        ("--zero_stage 1", "0.10.1", "gradient_clipping", 1.0),
        ("--ds.param_dtype fp16", "0.11.2", "fp16", {"enabled": True}),
        ("--train.dynamic_batch_enable", "0.11.2", "train_micro_batch_size_per_gpu", 1),
    ],
)
def test_defaults_of_openrlhf(
    tmp_path: Path, options: str, release: str, path: str, value: object
) -> None:
    document = read(tmp_path, f"{OPENRLHF.strip()} {options}\n", "train.sh")
    config: Any = opening.used(document, dsconfig.gather(releases={"openrlhf": release})).value
    assert config[path] == value


def test_a_finding_is_at_the_option(tmp_path: Path) -> None:
    document = read(tmp_path, PREFIXED.replace("batch_size 128", "batch_size 100"), "train.sh")
    found = dsconfig.validate(document, dsconfig.gather(gpus=8), runtime="deepspeed").diagnostics
    (error,) = [each for each in found if each.code == "DSC203"]
    assert error.range is not None and error.range.start.line == 4


def test_options_of_verl_build_its_config(tmp_path: Path) -> None:
    document = read(tmp_path, VERL)
    offload = {"device": "cpu", "pin_memory": True}
    assert document.value == {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": offload,
            "offload_param": offload,
            "gather_16bit_weights_on_model_save": True,
        },
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.01}},
    }
    place = document.range("/gradient_clipping")
    assert place is not None and place.start.line == 9


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_engine_of_verl_is_found_at_any_depth(stage: int, tmp_path: Path) -> None:
    actor = {"strategy": "deepspeed", "zero_stage": stage, "offload": "cpu", "dtype": "float16"}
    text = json.dumps({"actor_rollout_ref": {"actor": {"optim": {"lr": 1e-6}, "engine": actor}}})
    config: Any = read(tmp_path, text).value
    assert config["zero_optimization"]["stage"] == stage
    assert ("offload_optimizer" in config["zero_optimization"]) is (stage == 2)
    assert config["fp16"] == {"enabled": True} and config["optimizer"]["params"]["lr"] == 1e-6


def test_sizes_of_ppo_are_the_batch(tmp_path: Path) -> None:
    sizes = {"ppo_mini_batch_size": 64, "ppo_micro_batch_size_per_gpu": 2, "grad_clip": 0.5}
    actor = {"strategy": "deepspeed", "zero_stage": 2, **sizes}
    trainer = {"n_gpus_per_node": 8, "nnodes": 2}
    content = {"actor_rollout_ref": {"actor": actor, "rollout": {"n": 4}}, "trainer": trainer}
    document = read(tmp_path, json.dumps(content))
    config: Any = document.value
    assert (config["train_batch_size"], config["train_micro_batch_size_per_gpu"]) == (256, 2)
    assert "gradient_accumulation_steps" not in config and config["gradient_clipping"] == 0.5
    facts = embedded_facts.complete(Facts(), document)
    assert (facts.world_size, facts.nodes) == (16, 2)
    assert dsconfig.resolve(document, facts).config["gradient_accumulation_steps"] == 8
    actor["ppo_mini_batch_size"] = 63
    document = read(tmp_path, json.dumps(content))
    report = dsconfig.validate(document, facts, runtime="deepspeed")
    assert report.refusals, "252 samples on 16 ranks are not a multiple of 2 x 16"


@pytest.mark.parametrize(
    ("name", "text", "program"), [("t.sh", PREFIXED, "OpenRLHF"), ("t.yaml", VERL, "verl")]
)
def test_deepspeed_alone_runs_it(tmp_path: Path, name: str, text: str, program: str) -> None:
    document = read(tmp_path, text, name)
    facts = embedded_facts.complete(Facts(), document)
    target = target_program(None, "0.19.8", document=document, source=document.name, facts=facts)
    assert target.runtime.name == "deepspeed" and program in target.inferred_from


@pytest.mark.parametrize(
    "content",
    [
        {"zero_stage": 3, "train_batch_size": 8},
        {"deepspeed_config": {"zero_stage": 3}},
        {"engine": {"strategy": "fsdp", "zero_stage": 3}},
        {"engine": {"strategy": "deepspeed"}},
        {"engine": "deepspeed"},
        {},
    ],
)
def test_other_files_are_not_built_from_options(content: dict[str, Any]) -> None:
    assert option_configs.built_config(content) is None

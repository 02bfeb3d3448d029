"""The shapes in which LLaMA-Factory, axolotl, ms-swift, TRL and the alignment handbook keep runs.

Written by hand after their example folders: which keys there are, and where the config is named.
"""

import itertools
import json
from pathlib import Path

import pytest
import yaml

import dsconfig
from dsconfig.facts import embedded_facts
from dsconfig.project.inference import target_program
from dsconfig.project.neighbours import Neighbours
from dsconfig.report import Effect

FILLED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3},
}
NAMING = {
    "llama-factory": """
### model
model_name_or_path: some/model
trust_remote_code: true
### method
stage: sft
do_train: true
finetuning_type: full
deepspeed: configs/ds.json  # choices: a file of this folder
### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
""",
    "llama-factory, its next version": """
model: some/model
dist_config:
  name: deepspeed
  config_file: configs/ds.json
micro_batch_size: 1
cutoff_len: 2048
learning_rate: 1.0e-4
max_steps: 10
""",
    "axolotl": """
base_model: some/model
sequence_len: 8192
gradient_accumulation_steps: 1
micro_batch_size: 1
num_epochs: 3
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 2e-5
bf16: auto
warmup_ratio: 0.1
deepspeed: configs/ds.json
special_tokens:
""",
    "ms-swift": """
model: some/model
train_type: full
torch_dtype: bfloat16
deepspeed: configs/ds.json
per_device_train_batch_size: 1
gradient_accumulation_steps: 16
learning_rate: 1e-4
""",
}
WITHOUT = {
    "axolotl, switched off": "base_model: a/b\nmicro_batch_size: 1\ndeepspeed:\nfsdp:\nbf16: auto\n"
    "gradient_accumulation_steps: 4\n",
    "llama-factory, left out": "model_name_or_path: a/b\nper_device_train_batch_size: 1\n"
    "gradient_accumulation_steps: 8\nlr_scheduler_type: cosine\npure_bf16: true\n",
    "ms-swift, by a name of its own": "model: a/b\ndeepspeed: zero2_offload\nnum_train_epochs: 1\n",
    "axolotl, by a variable": "base_model: a/b\nmicro_batch_size: 1\ndeepspeed: ${DEEPSPEED}\n",
    "llama-factory, v1": "model: a/b\ndist_config:\n  name: fsdp2\nmicro_batch_size: 1\n"
    "output_dir: out\nlearning_rate: 1.0e-4\nbf16: false\nmax_steps: 10\n",
    "llama-factory, to chat": "model_name_or_path: a/b\ntemplate: qwen3\n",
    "accelerate, with FSDP": "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n",
}
LAUNCHED = """compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  deepspeed_multinode_launcher: standard
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""


@pytest.mark.parametrize("name", NAMING)
def test_named_config_next_to_yaml_has_no_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ds.json").write_text(json.dumps(FILLED))
    path = tmp_path / "train.yaml"
    path.write_text(NAMING[name])
    document = dsconfig.read(path)
    assert document.value == FILLED and document.container
    facts = dsconfig.gather(gpus=8)
    assert not dsconfig.validate(document, facts, runtime="transformers").errors
    found = dsconfig.resolve(document, facts, runtime="transformers")
    assert found.ok, found.diagnostics


@pytest.mark.parametrize("name", WITHOUT)
def test_yaml_without_config_gets_note(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(WITHOUT[name])
    report = dsconfig.validate(path, runtime="transformers")
    assert [(each.code, each.effect) for each in report.diagnostics] == [("DSC009", Effect.NOTE)]


@pytest.mark.parametrize("runtime", ["accelerate", "transformers"])
def test_trl_and_handbook_launch_files(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "deepspeed_zero3.yaml"
    path.write_text(LAUNCHED)
    assert not dsconfig.validate(path, runtime=runtime).errors


ARGUMENTS = {"output_dir": "out", "per_device_train_batch_size": 4, "learning_rate": 1e-4}


def test_json_arguments_equal_yaml_arguments(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(FILLED))
    path = tmp_path / "args.json"
    path.write_text(json.dumps({**ARGUMENTS, "deepspeed": "ds.json"}))
    document = dsconfig.read(path)
    assert document.value == FILLED and document.named_in == str(path)
    found = dsconfig.resolve(document, dsconfig.gather(gpus=2), runtime="transformers")
    assert found.ok and found.config["train_batch_size"] == 8
    for deepspeed in (None, "zero2", "${DEEPSPEED}"):
        path.write_text(json.dumps({**ARGUMENTS, "deepspeed": deepspeed}))
        report = dsconfig.validate(path, runtime="transformers")
        assert [(each.code, each.effect) for each in report.diagnostics] == [("DSC009", "note")]


def test_json_launch_file_is_detected_as_accelerate(tmp_path: Path) -> None:
    path = tmp_path / "default_config.json"
    launch = {"distributed_type": "DEEPSPEED", "num_processes": 2}
    path.write_text(json.dumps({**launch, "deepspeed_config": {"zero_stage": 3}}))
    document = dsconfig.read(path)
    assert document.is_generated and document.value["zero_optimization"]["stage"] == 3
    assert not dsconfig.validate(document, runtime="accelerate").errors


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_empty_file_is_reported_once(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.yaml"
    path.write_text(text)
    assert [each.code for each in dsconfig.validate(path).diagnostics] == ["DSC004"]


EMBEDDED = {
    "train_batch_size": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8},
}


@pytest.mark.parametrize("indent", [None, "\t"])
def test_config_embedded_in_json_uses_json_numbers(indent: str | None, tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    text = json.dumps({**ARGUMENTS, "deepspeed": EMBEDDED}, indent=indent)
    path.write_text(text.replace("500000000.0", "5e8").replace("0.0001", "1e-4"))
    document = dsconfig.read(path)
    assert document.value == EMBEDDED and not document.diagnostics
    facts = embedded_facts.complete(dsconfig.gather(gpus=2), document)
    assert not dsconfig.validate(document, facts, runtime="transformers").errors


@pytest.mark.parametrize("names", [["a.json", "a.json"], ["a.json", "b.json", "a.json"]])
def test_reference_cycle_is_reported(names: list[str], tmp_path: Path) -> None:
    for name, following in itertools.pairwise(names):
        (tmp_path / name).write_text(json.dumps({**ARGUMENTS, "deepspeed": following}))
    for _ in range(2):  # the first reading leaves nothing behind
        (found,) = dsconfig.read(tmp_path / "a.json").diagnostics
        assert found.code == "DSC001" and "refers back to this file" in found.message


def test_path_with_variable_gets_note(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("output_dir: out\ndeepspeed: $HOME/ds.json\n")
    (found,) = dsconfig.read(path).diagnostics
    assert (found.code, found.effect) == ("DSC009", Effect.NOTE)


@pytest.mark.parametrize(
    ("text", "key"),
    [("distributed_type: FSDP\n", "deepspeed_config_file"), ("deepspeed:\n", "deepspeed")],
)
def test_missing_config_help_names_program_key(text: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(text)
    (found,) = dsconfig.read(path).diagnostics
    assert f"set `{key}` to" in (found.help or "")


def test_config_path_relative_to_project_root(tmp_path: Path) -> None:
    (tmp_path / "examples" / "deepspeed").mkdir(parents=True)
    (tmp_path / "examples" / "full").mkdir()
    (tmp_path / "examples" / "deepspeed" / "ds.json").write_text(json.dumps(FILLED))
    path = tmp_path / "examples" / "full" / "train.yaml"
    path.write_text("output_dir: out\ndeepspeed: examples/deepspeed/ds.json\n")
    assert dsconfig.read(path).value == FILLED
    (tmp_path / "ds.json").write_text(json.dumps(FILLED))
    path.write_text("output_dir: out\ndeepspeed: ds.json\n")
    assert dsconfig.read(path).is_unreadable


@pytest.mark.parametrize(
    "text",
    [
        "site_name: Docs\nnav:\n  deepspeed: deepspeed.md\n",
        "services:\n  train:\n    environment:\n      deepspeed: '1'\n",
    ],
)
def test_unrelated_deepspeed_value_is_not_a_path(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.yml"
    path.write_text(text)
    found = dsconfig.validate(path, runtime="transformers").diagnostics
    assert [each.code for each in found] == ["DSC009"]


def test_arguments_one_level_down_are_found(tmp_path: Path) -> None:
    config = {"train_batch_size": "auto", "bf16": {"enabled": "auto"}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    path = tmp_path / "train.yaml"
    path.write_text(
        "deepspeed: ds.json\nseed: 3\n"
        "evaluation: {per_device_eval_batch_size: 4}\n"
        "training: {bf16: true, per_device_train_batch_size: 2, gradient_accumulation_steps: 4}\n"
    )
    facts = embedded_facts.complete(dsconfig.gather(gpus=8), dsconfig.read(path))
    assert facts.arguments["per_device_train_batch_size"] == 2 and facts.arguments["seed"] == 3
    resolution = dsconfig.resolve(path, dsconfig.gather(gpus=8), runtime="transformers")
    assert resolution.config["train_batch_size"] == 64
    assert resolution.config["bf16"]["enabled"] is True


NESTED = "per_device_train_batch_size: 2, gradient_accumulation_steps: 4, bf16: true"


@pytest.mark.parametrize(
    "text",
    [
        f"training: {{args: {{{NESTED}, deepspeed: ds.json}}}}\n",
        f"trainer: {{deepspeed_config: ds.json, {NESTED}}}\n",
        f"exp: {{trainer: {{args: {{{NESTED}, deepspeed: ds.json}}}}}}\n",
        f"deepspeed_config: ds.json\nrun: {{args: {{{NESTED}}}}}\n",
    ],
)
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_nested_arguments_and_reference_are_those_of_the_trainer(
    text: str, suffix: str, tmp_path: Path
) -> None:
    config = {"train_batch_size": "auto", "bf16": {"enabled": "auto"}}
    named = tmp_path / "ds.json"
    named.write_text(json.dumps(config))
    path = tmp_path / f"train{suffix}"
    path.write_text(text if suffix == ".yaml" else json.dumps(yaml.safe_load(text)))
    program = Neighbours().program_for(named)
    assert program == ("transformers", f"{path.name}, which references it")
    document = dsconfig.read(path)
    facts = embedded_facts.complete(dsconfig.gather(gpus=8), document)
    target = target_program(None, "0.19.8", document=document, source=str(path), facts=facts)
    assert target.runtime.name == "transformers"
    resolution = dsconfig.resolve(document, facts, runtime="transformers")
    assert resolution.config["train_batch_size"] == 64
    assert resolution.config["bf16"]["enabled"] is True


def test_block_without_training_arguments_is_run_by_deepspeed(tmp_path: Path) -> None:
    path = tmp_path / "ppo.yaml"
    path.write_text(
        "trainer:\n"
        "  gradient_checkpointing: true\n"
        "  policy:\n"
        f"    deepspeed_config: {json.dumps(EMBEDDED)}\n"
    )
    document = dsconfig.read(path)
    facts = embedded_facts.complete(dsconfig.gather(gpus=8), document)
    target = target_program(None, "0.19.8", document=document, source=str(path), facts=facts)
    assert target.runtime.name == "deepspeed"


@pytest.mark.parametrize(
    "body",
    [
        "  train_batch_size: ${train.batch}\n  zero_optimization: {stage: ${oc.env:STAGE}}\n",
        "  train_batch_size: {{ batch }}\n{% if x %}\n  zero_optimization: {stage: {{ s }}}\n"
        "{% endif %}\n",
        '  train_batch_size: "{{ batch }}"\n  zero_optimization: {stage: "${stage}"}\n',
        "  train_batch_size: @BATCH@\n  zero_optimization: {stage: $STAGE}\n",
    ],
)
def test_placeholders_in_yaml_are_those_of_json(body: str, tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(f"deepspeed:\n{body}  bf16: {{enabled: true}}\n  gradient_cliping: 1.0\n")
    document = dsconfig.read(path)
    assert document.placeholders == {"/train_batch_size", "/zero_optimization/stage"}
    found = dsconfig.validate(document, runtime="deepspeed").diagnostics
    assert [each.code for each in found] == ["DSC021", "DSC008"]
    (unknown, _) = found
    assert document.range("/gradient_cliping", key=True) == unknown.range


def test_placeholder_outside_the_config_does_not_make_it_a_template(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(f"output_dir: ${{HOME}}/out\ndeepspeed: {json.dumps(EMBEDDED)}\n")
    document = dsconfig.read(path)
    assert not document.is_template and document.container["output_dir"] == "${HOME}/out"

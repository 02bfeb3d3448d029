"""YAML files of accelerate and trainers as sources of configs and facts."""

import json
from pathlib import Path

import pytest

import dsconfig
from dsconfig.facts import embedded_facts
from narrowing import not_none

ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: {stage}
  offload_param_device: {device}
  zero3_init_flag: true
mixed_precision: {mixed}
num_machines: 1
num_processes: 8
"""
TRAINER = """model_name_or_path: some/model
do_train: true
finetuning_type: full
cutoff_len: 2048
deepspeed: ds.json
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 1e-5
lr_scheduler_type: cosine
bf16: true
"""
AXOLOTL = """base_model: some/model
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: adamw_torch
learning_rate: 0.00001
bf16: auto
deepspeed: ds.json
"""
COMPLETE = """compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 2
  offload_optimizer_device: none
  offload_param_device: none
machine_rank: 0
num_machines: 1
num_processes: 8
debug: false
"""
FILLED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
}


def launch(folder: Path, **settings: object) -> Path:
    values = {"stage": 3, "device": "none", "mixed": "bf16", **settings}
    path = folder / "accelerate.yaml"
    path.write_text(ACCELERATE.format(**values))
    return path


def codes(report: dsconfig.Report) -> set[str]:
    return {found.code for found in report.diagnostics if found.severity == "error"}


def test_plugin_settings_use_processes_and_precision_of_their_file(tmp_path: Path) -> None:
    facts = dsconfig.gather(micro_batch=2)
    found = dsconfig.resolve(launch(tmp_path), facts, runtime="accelerate")
    assert found.ok, found.diagnostics
    assert found.config["train_batch_size"] == 16
    assert found.config["bf16"] == {"enabled": True}
    assert found.config["zero_optimization"]["stage"] == 3


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_published_example_configs_have_no_findings(stage: int, tmp_path: Path) -> None:
    assert not codes(dsconfig.validate(launch(tmp_path, stage=stage), runtime="accelerate"))
    assert not codes(dsconfig.validate(launch(tmp_path, stage=stage), runtime="transformers"))


@pytest.mark.parametrize(
    ("before", "after", "code", "line"),
    [
        ("zero_stage", "zero_stge", "DSC705", 4),
        ("num_processes", "num_proceses", "DSC705", 9),
        ("zero_stage: 3", "zero_stage: three", "DSC705", 4),
        ("mixed_precision: bf16", "mixed_precision: bf61", "DSC705", 7),
        ("device: none", "device: cpuu", "DSC031", 5),
        ("device: none", "device: nvme", "DSC706", 5),
    ],
)
def test_plugin_finding_has_the_yaml_line(
    before: str, after: str, code: str, line: int, tmp_path: Path
) -> None:
    path = launch(tmp_path)
    path.write_text(path.read_text().replace(before, after))
    report = dsconfig.validate(path, runtime="accelerate")
    lines = [not_none(found.range).start.line for found in report.diagnostics if found.code == code]
    assert lines == [line], report.diagnostics


def test_bare_no_precision_is_reported_once(tmp_path: Path) -> None:
    path = launch(tmp_path)
    path.write_text(path.read_text().replace("mixed_precision: bf16", "mixed_precision: no"))
    document = dsconfig.read(path)
    facts = embedded_facts.complete(dsconfig.gather(), document)
    (found,) = dsconfig.validate(document, facts, runtime="accelerate").errors
    assert found.code == "DSC705" and "'no' in quotes" in (found.help or "")


def test_plugin_settings_in_addition_to_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(FILLED))
    path = tmp_path / "accelerate.yaml"
    path.write_text("deepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 3}\n")
    found = dsconfig.resolve(path, dsconfig.gather(gpus=1), runtime="accelerate")
    assert any("zero_stage must not be set" in each.message for each in found.diagnostics)


@pytest.mark.parametrize("text", [TRAINER, AXOLOTL], ids=["llama-factory", "axolotl"])
def test_trainer_arguments_around_a_config_become_facts(text: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(FILLED))
    path = tmp_path / "train.yaml"
    path.write_text(text)
    facts = embedded_facts.complete(dsconfig.gather(gpus=4), dsconfig.read(path))
    assert facts.training is not None and facts.training.learning_rate == 1e-5
    found = dsconfig.resolve(path, facts, runtime="transformers")
    assert found.ok, found.diagnostics
    assert found.config["train_batch_size"] == 32
    assert not codes(dsconfig.validate(path, facts, runtime="transformers"))


def plugin(folder: Path, *settings: str) -> Path:
    """Write accelerate's YAML with these settings."""
    path = folder / "plugin.yaml"
    lines = "".join(f"  {each}\n" for each in settings)
    path.write_text(f"distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n{lines}")
    return path


def test_accelerate_none_means_no_config_file(tmp_path: Path) -> None:
    path = plugin(tmp_path, "deepspeed_config_file: none", "zero_stage: 2")
    report = dsconfig.validate(path, runtime="accelerate")
    assert "DSC001" not in {each.code for each in report.diagnostics}
    assert report.refusals == ()


def test_generated_config_does_not_conflict_with_its_settings(tmp_path: Path) -> None:
    path = plugin(tmp_path, "zero_stage: 2", "gradient_accumulation_steps: -3")
    report = dsconfig.validate(path, runtime="accelerate")
    assert "DSC703" not in {each.code for each in report.diagnostics}


def test_duplicate_yaml_setting_is_reported(tmp_path: Path) -> None:
    path = plugin(tmp_path, "zero_stage: 3", "zero_stage: 2")
    report = dsconfig.validate(path, runtime="accelerate")
    assert any("duplicate key" in each.message for each in report.diagnostics)


def test_nested_containers_take_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text("{deepspeed: " * 60 + "{x: 1}" + "}" * 60)
    assert dsconfig.validate(path).diagnostics


def test_accumulation_and_clipping_are_plugin_settings(tmp_path: Path) -> None:
    path = plugin(tmp_path, "gradient_accumulation_steps: 4", "gradient_clipping: 1.0")
    document = dsconfig.read(path)
    assert document.is_generated and document.value["zero_optimization"]["stage"] == 2
    assert not codes(dsconfig.validate(document, runtime="accelerate"))


def test_deepspeed_without_settings_uses_accelerate_defaults(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: DEEPSPEED\nnum_processes: 2\n")
    assert dsconfig.read(path).value["zero_optimization"]["stage"] == 2


def test_yaml_merge_keys_apply_and_are_not_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\n"
        "fsdp_config: &shared {zero_stage: 3, gradient_clipping: 1.0}\n"
        "deepspeed_config:\n  <<: *shared\n  gradient_clipping: 2.0\n"
    )
    document = dsconfig.read(path)
    assert document.value["zero_optimization"]["stage"] == 3
    assert document.value["gradient_clipping"] == 2.0
    assert not codes(dsconfig.validate(document, runtime="accelerate"))


def test_non_numeric_clipping_norm_is_reported(tmp_path: Path) -> None:
    path = plugin(tmp_path, "zero_stage: 2", "gradient_clipping: .nan")
    report = dsconfig.validate(path, runtime="accelerate")
    findings = [each for each in report.diagnostics if each.code == "DSC421"]
    assert [not_none(each.range).start.line for each in findings] == [5]


def test_config_in_other_yaml_is_not_plugin_settings(tmp_path: Path) -> None:
    path = tmp_path / "composer.yaml"
    path.write_text("deepspeed_config:\n  train_batch_size: 8\n  zero_optimization: {stage: 3}\n")
    report = dsconfig.validate(path, runtime="deepspeed")
    assert not report.errors, report.errors


@pytest.mark.parametrize(
    ("before", "after", "effect", "line"),
    [
        ("num_processes: 8", "num_processes: four", "refused", 9),
        ("num_processes: 8", "num_processes: 0", "refused", 9),
        ("num_processes: 8", "num_processes: auto", None, 0),
        ("num_processes: 8", "num_processes: -1", "note", 9),
        ("num_machines: 1", "num_machines: two", "refused", 8),
        ("num_machines: 1", "num_machines: 0", "note", 8),
        ("num_machines: 1", "num_machines: -1", "note", 8),
        ("num_machines: 1", "use_cpu: true\nnum_machines: 0", "refused", 9),
        ("_type: DEEPSPEED", "_type: DEEPSPED", "refused", 2),
        ("_type: DEEPSPEED", "_type: MULTI_GPU", "inert", 2),
        ("LOCAL_MACHINE", "AMAZON_SAGEMAKER", "refused", 1),
        ("_type: DEEPSPEED", "_type:", "inert", 2),
        ("num_processes: 8", "num_processes: '²'", "refused", 9),
        ("num_processes: 8", f"num_processes: '{'9' * 5000}'", "refused", 9),
        ("num_machines: 1", "num_machines: .nan", "note", 8),
        ("num_machines: 1", "use_cpu: true\nnum_machines: .nan", "refused", 9),
        ("num_machines: 1", "num_machines: 2.0", "refused", 8),
        ("num_machines: 1", "num_machines: .inf", "refused", 8),
        ("debug: false", "mixed_precision: BF16", None, 0),
        ("debug: false", "fp16: true", None, 0),
        ("debug: false", "dynamo_backend: 'NO'", None, 0),
        ("debug: false", "deepspeed_config: ds.json", "refused", 10),
    ],
)
def test_launcher_effect_of_a_setting(
    before: str, after: str, effect: str | None, line: int, tmp_path: Path
) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(COMPLETE.replace(before, after))
    found = dsconfig.validate(path, runtime="accelerate").diagnostics
    findings = [
        (each.effect, not_none(each.range).start.line) for each in found if each.code == "DSC705"
    ]
    assert findings == ([(effect, line)] if effect else []), found


@pytest.mark.parametrize(("runtime", "count"), [("accelerate", 1), ("transformers", 0)])
def test_auto_accumulation_stops_the_accelerator_of_a_script(
    runtime: str, count: int, tmp_path: Path
) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(COMPLETE.replace("  zero_stage: 2", "  gradient_accumulation_steps: auto"))
    found = dsconfig.validate(path, runtime=runtime).diagnostics
    assert [each.code for each in found].count("DSC705") == count


def test_launcher_setting_that_is_a_large_integer(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(COMPLETE.replace("num_processes: 8", f"num_processes: 0x{'f' * 5000}"))
    found = dsconfig.validate(path, runtime="accelerate").diagnostics
    assert ("DSC013", 9) in [(each.code, not_none(each.range).start.line) for each in found]


def test_zero_machines_means_one(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(COMPLETE.replace("num_machines: 1", "num_machines: 0"))
    assert dsconfig.gather(accelerate_config=path).nodes == 1
    assert dsconfig.resolve(path, dsconfig.gather(micro_batch=1), runtime="accelerate").ok


def test_distributed_type_and_processes_are_required(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text("deepspeed_config: {zero_stage: 2}\n")
    found = dsconfig.validate(path, runtime="accelerate").diagnostics
    assert [each.effect for each in found if each.code == "DSC705"] == ["refused", "note"]


def test_former_fp16_setting_is_a_precision(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(COMPLETE.replace("debug: false", "fp16: true"))
    found = dsconfig.resolve(path, dsconfig.gather(micro_batch=1), runtime="accelerate")
    assert found.ok and found.config["fp16"]["enabled"] is True


@pytest.mark.parametrize(("mixed", "block"), [("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "bf16")])
def test_launch_precision_is_part_of_the_created_config(
    mixed: str, block: str, tmp_path: Path
) -> None:
    document = dsconfig.read(launch(tmp_path, mixed=mixed))
    assert document.value[block]["enabled"] is True
    assert not_none(document.range(f"/{block}/enabled")).start.line == 7
    facts = dsconfig.gather(micro_batch=1, gpus=8, global_batch=8)
    alone = dsconfig.resolve(document.value, facts)
    assert not_none(alone.effective).numerics.precision == block


def test_distributed_type_no_is_shown_as_yaml_false(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(COMPLETE.replace("_type: DEEPSPEED", "_type: NO"))
    found = dsconfig.validate(path, runtime="accelerate").diagnostics
    (findings,) = [each.message for each in found if each.code == "DSC705"]
    assert findings.startswith("distributed_type is False (false in YAML)")


def test_precision_is_case_insensitive(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(COMPLETE.replace("debug: false", "mixed_precision: BF16"))
    facts = dsconfig.gather(accelerate_config=path)
    assert facts.training is not None and facts.training.precision == "bf16"

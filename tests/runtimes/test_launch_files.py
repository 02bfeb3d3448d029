"""accelerate's and trainers' YAML as first-class sources: judged, resolved, priced, with facts."""

import json
from pathlib import Path

import pytest

import dsconfig
from dsconfig.facts import embedded_facts

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
WHOLE = """compute_environment: LOCAL_MACHINE
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


def test_a_plugin_is_resolved_with_the_processes_and_precision_of_its_file(tmp_path: Path) -> None:
    facts = dsconfig.gather(micro_batch=2)
    found = dsconfig.resolve(launch(tmp_path), facts, runtime="accelerate")
    assert found.ok, found.diagnostics
    assert found.config["train_batch_size"] == 16
    assert found.config["bf16"] == {"enabled": True}
    assert found.config["zero_optimization"]["stage"] == 3


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_forms_of_public_examples_have_no_finding(stage: int, tmp_path: Path) -> None:
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
def test_a_slip_in_a_plugin_is_told_at_its_line(
    before: str, after: str, code: str, line: int, tmp_path: Path
) -> None:
    path = launch(tmp_path)
    path.write_text(path.read_text().replace(before, after))
    report = dsconfig.validate(path, runtime="accelerate")
    lines = [found.range.start.line for found in report.diagnostics if found.code == code]
    assert lines == [line], report.diagnostics


def test_a_precision_that_yaml_reads_as_false_is_told_once(tmp_path: Path) -> None:
    path = launch(tmp_path)
    path.write_text(path.read_text().replace("mixed_precision: bf16", "mixed_precision: no"))
    document = dsconfig.read(path)
    facts = embedded_facts.complete(dsconfig.gather(), document)
    (found,) = dsconfig.validate(document, facts, runtime="accelerate").errors
    assert found.code == "DSC705" and "'no' in quotes" in (found.help or "")


def test_settings_beside_a_file_stop_accelerate(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(FILLED))
    path = tmp_path / "accelerate.yaml"
    path.write_text("deepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 3}\n")
    found = dsconfig.resolve(path, dsconfig.gather(gpus=1), runtime="accelerate")
    assert any("also sets zero_stage" in each.message for each in found.diagnostics)


@pytest.mark.parametrize("text", [TRAINER, AXOLOTL], ids=["llama-factory", "axolotl"])
def test_the_arguments_around_a_named_config_are_facts(text: str, tmp_path: Path) -> None:
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
    """accelerate's YAML with these lines of settings alone."""
    path = folder / "plugin.yaml"
    lines = "".join(f"  {each}\n" for each in settings)
    path.write_text(f"distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n{lines}")
    return path


def test_accelerates_word_for_no_file_names_none(tmp_path: Path) -> None:
    path = plugin(tmp_path, "deepspeed_config_file: none", "zero_stage: 2")
    report = dsconfig.validate(path, runtime="accelerate")
    assert "DSC001" not in {each.code for each in report.diagnostics}
    assert report.refusals == ()


def test_a_config_is_not_held_against_the_settings_it_was_made_from(tmp_path: Path) -> None:
    path = plugin(tmp_path, "zero_stage: 2", "gradient_accumulation_steps: -3")
    report = dsconfig.validate(path, runtime="accelerate")
    assert "DSC703" not in {each.code for each in report.diagnostics}


def test_a_setting_that_stands_twice_is_told(tmp_path: Path) -> None:
    path = plugin(tmp_path, "zero_stage: 3", "zero_stage: 2")
    report = dsconfig.validate(path, runtime="accelerate")
    assert any("twice" in each.message or "again" in each.message for each in report.diagnostics)


def test_holders_within_holders_take_no_longer_for_each(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text("{deepspeed: " * 60 + "{x: 1}" + "}" * 60)
    assert dsconfig.validate(path).diagnostics


def test_accumulation_and_clipping_alone_are_settings_of_the_plugin(tmp_path: Path) -> None:
    path = plugin(tmp_path, "gradient_accumulation_steps: 4", "gradient_clipping: 1.0")
    document = dsconfig.read(path)
    assert document.is_generated and document.value["zero_optimization"]["stage"] == 2
    assert not codes(dsconfig.validate(document, runtime="accelerate"))


def test_deepspeed_without_settings_runs_with_accelerates_own(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: DEEPSPEED\nnum_processes: 2\n")
    assert dsconfig.read(path).value["zero_optimization"]["stage"] == 2


def test_settings_that_yaml_merges_in_count_and_are_no_repetition(tmp_path: Path) -> None:
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


def test_a_clipping_norm_that_is_no_number_is_told(tmp_path: Path) -> None:
    path = plugin(tmp_path, "zero_stage: 2", "gradient_clipping: .nan")
    report = dsconfig.validate(path, runtime="accelerate")
    told = [each for each in report.diagnostics if each.code == "DSC421"]
    assert [each.range.start.line for each in told] == [5]


def test_a_config_inside_another_programs_yaml_is_not_taken_for_settings(tmp_path: Path) -> None:
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
        ("num_processes: 8", f"num_processes: 0x{'f' * 5000}", "refused", 9),
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
def test_what_the_launcher_makes_of_a_line(
    before: str, after: str, effect: str | None, line: int, tmp_path: Path
) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(WHOLE.replace(before, after))
    found = dsconfig.validate(path, runtime="accelerate").diagnostics
    told = [(each.effect, each.range.start.line) for each in found if each.code == "DSC705"]
    assert told == ([(effect, line)] if effect else []), found


def test_no_machine_is_one(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(WHOLE.replace("num_machines: 1", "num_machines: 0"))
    assert dsconfig.gather(accelerate_config=path).nodes == 1
    assert dsconfig.resolve(path, dsconfig.gather(micro_batch=1), runtime="accelerate").ok


def test_the_kind_and_the_processes_have_to_be_said(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text("deepspeed_config: {zero_stage: 2}\n")
    found = dsconfig.validate(path, runtime="accelerate").diagnostics
    assert [each.effect for each in found if each.code == "DSC705"] == ["refused", "note"]


def test_fp16_of_earlier_releases_is_a_precision(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(WHOLE.replace("debug: false", "fp16: true"))
    found = dsconfig.resolve(path, dsconfig.gather(micro_batch=1), runtime="accelerate")
    assert found.ok and found.config["fp16"]["enabled"] is True


@pytest.mark.parametrize(("mixed", "block"), [("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "bf16")])
def test_the_precision_of_the_launch_is_part_of_what_accelerate_makes(
    mixed: str, block: str, tmp_path: Path
) -> None:
    document = dsconfig.read(launch(tmp_path, mixed=mixed))
    assert document.value[block]["enabled"] is True
    assert document.range(f"/{block}/enabled").start.line == 7
    facts = dsconfig.gather(micro_batch=1, gpus=8, global_batch=8)
    alone = dsconfig.resolve(document.value, facts)
    assert alone.effective.numerics.precision == block


def test_a_kind_that_yaml_reads_as_false_is_shown_with_its_word(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(WHOLE.replace("_type: DEEPSPEED", "_type: NO"))
    found = dsconfig.validate(path, runtime="accelerate").diagnostics
    (told,) = [each.message for each in found if each.code == "DSC705"]
    assert told.startswith("distributed_type is False (YAML's word for false)")


def test_a_precision_in_capitals_is_one(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(WHOLE.replace("debug: false", "mixed_precision: BF16"))
    facts = dsconfig.gather(accelerate_config=path)
    assert facts.training is not None and facts.training.precision == "bf16"

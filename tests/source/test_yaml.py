"""YAML that embeds or names a ds_config."""

from pathlib import Path

import pytest

from dsconfig.source import Format, read
from dsconfig.source.from_yaml import document_from_yaml

ACCELERATE = """compute_environment: LOCAL_MACHINE
deepspeed_config:
  deepspeed_config_file: ds.json
  zero3_init_flag: true
"""
TRAINER = """# a comment é
model: x
training:
  deepspeed:
    train_batch_size: 8
    zero_optimization:
      stage: 3
      reduce_bucket_size: 5e8
    betas: [0.9, 0.95]
"""


def test_named_file_is_read_next_to_yaml(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}')
    (tmp_path / "accelerate.yaml").write_text(ACCELERATE)
    document = read(tmp_path / "accelerate.yaml")
    assert document.value == {"train_batch_size": 8}
    assert document.name == str(tmp_path / "ds.json")


def test_missing_named_file_is_reported_at_its_name(tmp_path: Path) -> None:
    (tmp_path / "train.yml").write_text("deepspeed: nowhere.json\n")
    document = read(tmp_path / "train.yml")
    assert document.is_unreadable
    (found,) = document.diagnostics
    assert found.range and (found.range.start.line, found.range.start.column) == (1, 12)


def test_embedded_config_has_pyyaml_values_and_positions() -> None:
    document = document_from_yaml(TRAINER, "train.yaml", read)
    assert document.format is Format.YAML
    assert document.value["zero_optimization"] == {"stage": 3, "reduce_bucket_size": "5e8"}
    place = document.range("/zero_optimization/reduce_bucket_size")
    assert place and (place.start.line, place.start.column, place.end.column) == (8, 27, 30)
    block = document.range("/zero_optimization")
    assert block and (block.start.line, block.end.line) == (7, 8)


def test_yaml_that_is_a_config() -> None:
    document = document_from_yaml("train_batch_size: 8\n", "ds.yaml", read)
    assert document.value == {"train_batch_size": 8}


def test_duplicate_keys_merges_and_unusual_values() -> None:
    text = "base: &b {stage: 2}\ndeepspeed:\n  fp16: {}\n  fp16: {enabled: yes}\n"
    text += "  zero_optimization: {<<: *b, 1: x}\n  steps_per_print: 2024-01-01\n"
    document = document_from_yaml(text, "x.yaml", read)
    assert [found.code for found in document.diagnostics] == ["DSC003"]
    assert document.value["fp16"] == {"enabled": True}
    assert document.value["zero_optimization"] == {"stage": 2, "1": "x"}
    assert document.value["steps_per_print"] == "2024-01-01"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "DSC004"),
        ("a: [", "DSC002"),
        ("a: \x00", "DSC002"),
        ("deepspeed: !!python/object:os.system {}", "DSC002"),
        ("- 1\n- 2\n", "DSC009"),
        ("deepspeed: null\n", "DSC009"),
        ("model: x\ntraining: {lr: 1}\n", "DSC009"),
        ("deepspeed: &a {fp16: *a, bf16: 1}", "DSC001"),
        ("a: " + "[" * 3000, "DSC001"),
        ("deepspeed: {fp16: 1, bf16: 2024-99-99}", "DSC002"),
    ],
)
def test_yaml_without_config_reports_one_finding(text: str, code: str) -> None:
    (found,) = document_from_yaml(text, "x.yaml", read).diagnostics
    assert found.code == code


def test_alias_expansion_is_limited() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    document = document_from_yaml("\n".join(lines), "bomb.yaml", read)
    assert document.is_unreadable


PLUGIN = """compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 4
  offload_optimizer_device: none
  offload_param_device: nvme
  offload_param_nvme_path: /nv
  zero3_save_16bit_model: true
mixed_precision: bf16
num_processes: 8
"""


def test_plugin_settings_become_generated_config() -> None:
    document = document_from_yaml(PLUGIN, "x.yaml", read)
    assert not document.diagnostics and document.is_generated
    # The launcher hands no path on, so that the plugin takes the word none for it.
    assert document.value["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "none", "nvme_path": None},
        "offload_param": {"device": "nvme", "nvme_path": "none"},
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    place = document.range("/zero_optimization/offload_param/device")
    assert place and (place.start.line, place.start.column) == (7, 25)
    assert document.container["num_processes"] == 8

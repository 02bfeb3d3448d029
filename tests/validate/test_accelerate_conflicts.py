"""Conflicts between an accelerate config and the config it names are reported in the YAML file."""

import json
from pathlib import Path

import pytest

import dsconfig
from dsconfig.source import plugin_settings
from validate.test_command import Run, put, run

__all__ = ["run"]

LAUNCH = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 2
deepspeed_config:
  deepspeed_config_file: ds_z3.json
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  zero_stage: 3
  zero3_init_flag: true
"""
KEYS = {
    "/mixed_precision": (3, 1),
    "/deepspeed_config/gradient_accumulation_steps": (7, 3),
    "/deepspeed_config/gradient_clipping": (8, 3),
    "/deepspeed_config/zero_stage": (9, 3),
}
CONFIG = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}\n'


def conflicts(run: Run, *arguments: str) -> dict[str, tuple[int, int]]:
    result = run(*arguments, "--output-format", "json")
    assert result.code == 1
    found = {file["file"]: file["diagnostics"] for file in json.loads(result.out)["files"]}
    return {
        each["pointer"]: (each["range"]["start"]["line"], each["range"]["start"]["column"])
        for each in found.get("acc.yaml", ())
        if each["code"] == "DSC704"
    }


def test_conflicting_keys_are_reported_in_accelerate_config(run: Run) -> None:
    put("ds_z3.json", CONFIG)
    put("acc.yaml", LAUNCH)
    assert conflicts(run, "acc.yaml") == KEYS
    assert conflicts(run, "ds_z3.json", "--accelerate-config", "acc.yaml") == KEYS


def test_conflicting_keys_are_reported_together_with_other_errors(run: Run) -> None:
    put("ds_z3.json", CONFIG.replace('"stage": 3', '"stage": 3, "overlap_comm": "auto"'))
    put("acc.yaml", LAUNCH)
    assert conflicts(run, "acc.yaml") == KEYS
    out = run("acc.yaml").out
    assert "error[DSC101]" in out and " --> acc.yaml:3:1" in out and "zero_stage (line 9)" in out


def test_conflicting_keys_are_displayed_as_one_error(run: Run) -> None:
    put("ds_z3.json", CONFIG)
    put("acc.yaml", LAUNCH)
    shown = run("acc.yaml")
    assert shown.out.count("error[DSC704]") == 1 and "1 error," in shown.err
    names = [key.rpartition("/")[2] for key in KEYS]
    help = next(line for line in shown.out.splitlines() if "= help:" in line)
    assert all(name in shown.out[shown.out.index(help) :] for name in names)


def test_config_without_conflicting_keys_is_clean(run: Run) -> None:
    put("ds_z3.json", CONFIG)
    kept = [line for line in LAUNCH.splitlines() if "gradient" not in line and "mixed" not in line]
    put("acc.yaml", "\n".join(line for line in kept if "zero_stage" not in line))
    assert run("acc.yaml").code == 0


def test_baseline_suppresses_findings_in_accelerate_config(run: Run) -> None:
    put("ds_z3.json", CONFIG)
    put("acc.yaml", LAUNCH)
    put("base.json", run("acc.yaml", "--output-format", "json").out)
    assert run("acc.yaml", "--baseline", "base.json").code == 0


@pytest.mark.parametrize(
    ("settings", "code", "remedy"),
    [
        ("zero_stage: 3", "DSC403", "add deepspeed_config.zero3_save_16bit_model: true, or"),
        ("gradient_accumulation_steps: 0", "DSC202", "set deepspeed_config.gradient_accum"),
    ],
)
def test_remedy_names_the_setting_of_the_yaml(
    tmp_path: Path, settings: str, code: str, remedy: str
) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  {settings}\n")
    report = dsconfig.validate(path, runtime="accelerate")
    (finding,) = (each for each in report.diagnostics if each.code == code)
    assert (finding.help or "").startswith(remedy)


def test_remedy_without_a_setting_in_the_yaml_suggests_a_config_file() -> None:
    def in_settings(remedy: str) -> str:
        return plugin_settings.in_settings(remedy, lambda name: name != "zero_to_fp32")

    assert in_settings('add "overlap_comm": true').endswith("name it in deepspeed_config_file")
    assert in_settings('write "bf16": {"enabled": true}') == "write mixed_precision: bf16"
    assert in_settings("run zero_to_fp32") == "run zero_to_fp32"

"""Conflicts between config, TrainingArguments and accelerate config."""

import json
from pathlib import Path

import pytest

import dsconfig
from dsconfig.facts import gather
from narrowing import not_none

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.001}},
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}
ARGUMENTS = """\
per_device_train_batch_size: 4
learning_rate: 0.0001
lr_scheduler_type: cosine
bf16: true
"""
LAUNCH = """\
num_processes: 8
mixed_precision: fp16
deepspeed_config:
  zero_stage: 2
  gradient_clipping: 0.5
"""


@pytest.fixture
def files(tmp_path):
    config, arguments, launch = (tmp_path / name for name in ("ds.json", "args.yaml", "acc.yaml"))
    config.write_text(json.dumps(CONFIG))
    arguments.write_text(ARGUMENTS)
    launch.write_text(LAUNCH)
    return config, arguments, launch


def disagreements(config, **facts):
    report = dsconfig.validate(config, gather(**facts), runtime="dsengine")
    return {
        (found.pointer, found.message): found
        for found in report.diagnostics
        if found.code == "DSC703"
    }


def test_all_conflicts_are_reported_at_once(files):
    config, arguments, launch = files
    found = disagreements(str(config), training_args=arguments, accelerate_config=launch)
    assert sorted(pointer for pointer, _ in found) == [
        "/bf16/enabled",
        "/fp16/enabled",
        "/gradient_clipping",
        "/optimizer/params/lr",
        "/scheduler/params/warmup_max_lr",
        "/scheduler/type",
        "/train_micro_batch_size_per_gpu",
        "/zero_optimization/stage",
    ]


def test_conflict_is_found_without_number_of_processes(tmp_path: Path) -> None:
    arguments = tmp_path / "args.yaml"
    arguments.write_text("per_device_train_batch_size: 4\n")
    config = {"train_micro_batch_size_per_gpu": 3, "train_batch_size": 6}
    found = dsconfig.validate(config, gather(training_args=arguments), runtime="transformers")
    assert [each.pointer for each in found.diagnostics if each.code == "DSC703"] == [
        "/train_micro_batch_size_per_gpu"
    ]


def test_calculated_batch_is_not_called_an_argument(tmp_path: Path) -> None:
    arguments = tmp_path / "args.yaml"
    arguments.write_text("per_device_train_batch_size: 4\ngradient_accumulation_steps: 2\n")
    config = {"train_batch_size": 64, "zero_optimization": {"stage": 2}}
    facts = gather(training_args=arguments, gpus=2)
    [found] = [
        each
        for each in dsconfig.validate(config, facts, runtime="transformers").diagnostics
        if each.code == "DSC703"
    ]
    product = "per_device_train_batch_size x gradient_accumulation_steps x processes = 16"
    assert product in found.message


def test_conflict_shows_both_values_and_positions(files):
    config, arguments, launch = files
    found = disagreements(str(config), training_args=arguments, accelerate_config=launch)
    stage = next(m for (pointer, m) in found if pointer == "/zero_optimization/stage")
    assert f"{config} has 3" in stage
    assert f"{launch}:4 has deepspeed_config.zero_stage = 2" in stage
    half = next(m for (pointer, m) in found if pointer == "/bf16/enabled")
    assert f"{arguments}:4 has bf16 = true" in half
    assert f'{launch}:2 has mixed_precision = "fp16"' in half


def test_conflict_points_to_config_key(files):
    found = disagreements(str(files[0]), training_args=files[1], gpus=8)
    lr = next(f for (pointer, _), f in found.items() if pointer == "/optimizer/params/lr")
    assert lr.range is not None


def test_unset_arguments_do_not_conflict():
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5}
    assert not disagreements(config, training_args={"learning_rate": 1e-4}, gpus=2)


def test_auto_and_equal_values_do_not_conflict():
    config = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2}
    arguments = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    assert not disagreements(config, training_args=arguments, gpus=2)


def test_equal_or_missing_launch_settings_do_not_conflict(files):
    shared = {"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}
    for config in ({"zero_optimization": {}}, shared, {"gradient_clipping": 0.5}):
        assert not disagreements({"train_batch_size": 8, **config}, accelerate_config=files[2])


def test_conflicting_precisions_are_reported():
    facts = {"training_args": {"bf16": True, "fp16": False}, "gpus": 2}
    on = disagreements({"train_batch_size": 8, "fp16": {"enabled": True}}, **facts)
    assert {pointer for pointer, _ in on} == {"/fp16/enabled"}
    for block in ({"fp16": {"enabled": False}}, {"fp16": {}}, {"bf16": {"enabled": True}}):
        assert not disagreements({"train_batch_size": 8, **block}, **facts), block
    without_precision = {"training_args": {"learning_rate": 1e-4}, "gpus": 2}
    assert not disagreements(
        {"train_batch_size": 8, "fp16": {"enabled": True}}, **without_precision
    )


@pytest.mark.parametrize(
    ("block", "argument"), [("optimizer", "optim"), ("scheduler", "lr_scheduler_type")]
)
def test_type_in_both_files_conflicts_unless_auto(block, argument):
    facts = {"training_args": {argument: "x"}, "gpus": 2}
    for kind, conflicts in (("AdamW", True), ("auto", False), (None, False), (3, False)):
        config = {"train_batch_size": 8, block: {"type": kind, "params": {}}}
        pointers = {pointer for pointer, _ in disagreements(config, **facts)}
        assert (f"/{block}/type" in pointers) == conflicts, kind
    config = {"train_batch_size": 8, block: {"type": "AdamW", "params": {}}}
    assert not disagreements(config, training_args={"weight_decay": 0.1}, gpus=2)


def by_pointer(config, code, command, runtime):
    facts = gather(training_args=TRAINING, gpus=2)
    found = command(config, facts, runtime=runtime).diagnostics
    return {each.pointer: each for each in found if each.code == code}


TRAINING = {"lr_scheduler_type": "cosine", "optim": "adafactor", "learning_rate": 1e-4}
TYPES = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
}


@pytest.mark.parametrize("runtime", ["transformers", "dsengine", "accelerate", "deepspeed"])
def test_validate_and_resolve_agree_on_effect_and_help(runtime):
    checked = by_pointer(TYPES, "DSC703", dsconfig.validate, runtime)
    resolved = by_pointer(TYPES, "DSC703", dsconfig.resolve, runtime)
    assert {"/optimizer/type", "/scheduler/type"} <= checked.keys()
    errors = {at for at, found in checked.items() if found.severity is dsconfig.Severity.ERROR}
    assert resolved.keys() == errors
    for pointer in errors:
        assert checked[pointer].effect is resolved[pointer].effect
        assert checked[pointer].help == resolved[pointer].help


def test_block_type_is_never_suggested_as_auto():
    found = by_pointer(TYPES, "DSC703", dsconfig.validate, "transformers")
    for block, argument in (("optimizer", "optim"), ("scheduler", "lr_scheduler_type")):
        help = not_none(found[f"/{block}/type"].help)
        assert help.startswith(f'delete "{block}" to use {argument} = ') and '"auto"' not in help
    without = {key: value for key, value in TYPES.items() if key not in ("optimizer", "scheduler")}
    report = dsconfig.validate(
        without, gather(training_args=TRAINING, gpus=2), runtime="transformers"
    )
    assert report.ok and "DSC703" not in {each.code for each in report.diagnostics}


def test_suggested_auto_is_accepted():
    config = {**CONFIG, "fp16": {"enabled": False}}
    facts = gather(
        training_args={
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-4,
            "max_grad_norm": 0.5,
            "warmup_steps": 3,
        },
        gpus=2,
    )
    found = dsconfig.validate(config, facts, runtime="transformers").diagnostics
    suggested = [
        each.pointer
        for each in found
        if each.code == "DSC703" and not_none(each.help).startswith('write "auto"')
    ]
    assert suggested
    for pointer in suggested:
        *outer, name = pointer.strip("/").split("/")
        block = config = json.loads(json.dumps(config))
        for part in outer:
            block = block[part]
        block[name] = "auto"
    codes = {
        each.code for each in dsconfig.validate(config, facts, runtime="transformers").diagnostics
    }
    assert not codes & {"DSC101", "DSC703"}


def test_keys_of_accelerate_config_are_reported_in_its_file(files):
    config, _, launch = files
    launch.write_text(LAUNCH + f"  deepspeed_config_file: {config}\n")
    found = dsconfig.resolve(str(launch), runtime="accelerate").diagnostics
    places = {each.pointer: (each.file, each.range) for each in found if each.code == "DSC704"}
    assert places.keys() == {
        "/deepspeed_config/zero_stage",
        "/deepspeed_config/gradient_clipping",
        "/mixed_precision",
    }
    assert all(file == str(launch) and range is not None for file, range in places.values())

"""``dsconfig convert``: accelerate YAMLs, and what cannot be converted."""

from pathlib import Path

import pytest
import yaml

from command_line import run

CONFIG = """{"train_batch_size": 8, "bf16": {"enabled": true}, "notes": "x",
"zero_optimization": {"stage": 3, "no_such_key": 1}, "steps_per_print": 10}"""
YAML = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 2\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ds.json").write_text(CONFIG)
    (tmp_path / "acc.yaml").write_text(YAML)
    return tmp_path


def test_accelerate_yaml_names_the_file_and_counts_nodes(folder: Path) -> None:
    done = run("convert", "ds.json", "--to", "accelerate", "--gpus", 16, cwd=folder)
    assert yaml.safe_load(done.stdout) == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "num_machines": 2,
        "num_processes": 16,
        "deepspeed_config": {
            "deepspeed_config_file": "ds.json",
            "zero3_init_flag": True,
            "deepspeed_multinode_launcher": "standard",
        },
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-",), "and stdin cannot be named; write the config with --to json"),
        (("ds.json", "--set", "gradient_clipping=1"), "--set changes cannot be named"),
        (("acc.yaml",), "acc.yaml: this is already an accelerate YAML"),
    ],
)
def test_accelerate_yaml_requires_a_file_to_name(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = run("convert", *arguments, "--to", "accelerate", cwd=folder, stdin=CONFIG)
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr


@pytest.mark.parametrize("form", ["fsdp2", "accelerate-fsdp2", "torchtitan"])
def test_keys_without_equivalent_are_listed_by_what_to_do(folder: Path, form: str) -> None:
    done = run("convert", "ds.json", "--to", form, "--gpus", 8, cwd=folder)
    assert done.returncode == 0, done.stderr
    text, _, unread = done.stdout.partition("# Not converted: DeepSpeed does not read")
    assert "#   steps_per_print = 10" in text and "notes" not in text
    assert '#   notes = "x"' in unread and "no_such_key = 1" in unread


@pytest.mark.parametrize("form", ["fsdp2", "torchtitan"])
def test_unresolved_config_names_the_command_once(folder: Path, form: str) -> None:
    done = run("convert", "acc.yaml", "--to", form, cwd=folder)
    assert done.returncode == 2 and done.stderr.count("resolve the config") == 1
    assert "`dsconfig resolve acc.yaml -o new.json`" in done.stderr


def test_open_batch_is_a_usage_error(folder: Path) -> None:
    (folder / "open.json").write_text('{"zero_optimization": {"stage": 3}}')
    done = run("convert", "open.json", "--to", "fsdp2", cwd=folder)
    assert done.returncode == 2 and "the batch is not determined" in done.stderr


AUTOS = """{"train_batch_size": "auto", "bf16": {"enabled": true}, "zero_optimization": {"stage": 3,
"reduce_bucket_size": "auto"}, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}}"""


def test_values_that_the_target_does_not_read_may_be_open(folder: Path) -> None:
    """accelerate's YAML for FSDP has no batch, learning rate or schedule."""
    (folder / "open.json").write_text(AUTOS)
    done = run("convert", "open.json", "--to", "accelerate-fsdp2", "--gpus", 8, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["fsdp_config"]["fsdp_version"] == 2
    for name in ("optimizer.params.lr", "train_batch_size", "scheduler.params.total_num_steps"):
        assert f'#   {name} = "auto"\n' in done.stdout
    assert "{}" not in done.stdout


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("fsdp2", "optimizer.params.lr"),
        ("torchtitan", "optimizer.params.lr"),
        ("accelerate-fsdp2", "bf16.enabled"),
    ],
)
def test_values_that_the_target_reads_are_required(folder: Path, form: str, name: str) -> None:
    text = AUTOS.replace('{"enabled": true}', '{"enabled": "auto"}' if "bf16" in name else "{}")
    (folder / "open.json").write_text(text.replace('"train_batch_size": "auto"', '"seed": 1'))
    flags = ("--set", "train_batch_size=8", "--gpus", 8)
    done = run("convert", "open.json", "--to", form, *flags, cwd=folder)
    assert done.returncode == 2 and f'{name} is still "auto"' in done.stderr

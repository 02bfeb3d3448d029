"""Usage errors: exit code 2 and one line with the flag and the fix."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
ADAM = ("--set", "optimizer.type=AdamW")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dsconfig", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.mark.parametrize("command", ["plan", "resolve", "convert", "init", "schema"])
def test_unwritable_output_is_named(command: str, config: Path, tmp_path: Path) -> None:
    arguments = {
        "plan": ("plan", config, "--gpus", 2),
        "resolve": ("resolve", config),
        "convert": ("convert", config, "--to", "json"),
    }.get(command, (command,))
    gone = tmp_path / "gone" / "out.json"
    assert f"-o {gone}: No such file" in refused(run(*arguments, "-o", gone))


def test_schema_all_requires_a_directory(config: Path) -> None:
    assert "--all" in refused(run("schema", "--all", config))


@pytest.mark.parametrize(
    "flags", [("--gpus", 0), ("--gpus", 5, "--nodes", 2), ("--gpus", 2, "--nodes", -1)]
)
def test_convert_rejects_impossible_counts(flags: tuple[object, ...], config: Path) -> None:
    assert str(flags[-2]) in refused(run("convert", config, "--to", "accelerate", *flags))


@pytest.mark.parametrize(
    "flags",
    [
        ("--learning-rate", "nan"),
        ("--micro-batch", -2),
        ("--global-batch", 0, "--model", "gpt2", "--gpus", 2, "--device", "h100"),
    ],
)
def test_init_rejects_impossible_numbers(flags: tuple[object, ...]) -> None:
    assert str(flags[0]) in refused(run("init", *flags))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "optimizer.type=AdamW"),
        (ADAM, "specify --model"),
        ((*ADAM, "--params", "1e9"), "--simulate"),
    ],
)
@pytest.mark.engine
def test_simulation_names_missing_inputs(
    flags: tuple[object, ...], said: str, config: Path
) -> None:
    assert said in refused(run("plan", config, "--simulate", "--gpus", 2, *flags))


@pytest.mark.engine
def test_simulation_accepts_model_file(config: Path, tmp_path: Path) -> None:
    model = tmp_path / "gpt.json"
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 256, "n_positions": 64}
    model.write_text(json.dumps({"model_type": "gpt2", **sizes}))
    flags = ("--gpus", 2, "--model", model, *ADAM)
    done = run("plan", config, "--simulate", *flags)
    assert done.returncode == 0, done.stderr


def test_lone_surrogates_are_escaped(config: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.json"
    odd.write_text('{"train_batch_size": 8, "a\\ud800": "\\ud800"}')
    done = run("diff", odd, config)
    assert done.returncode == 1, done.stderr
    assert "\\ud800" in done.stdout


@pytest.mark.parametrize("command", ["validate", "resolve", "estimate", "plan", "convert"])
def test_empty_file_name_is_usage_error(command: str) -> None:
    flags = {"estimate": ("--params", "1e9"), "convert": ("--to", "json")}.get(command, ())
    said = refused(run(command, "", *flags))
    assert "'' is not a file name" in said and "- for stdin" in said


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("zero_optimization.stag", "did you mean zero_optimization.stage?"),
        ("overlap_com", "did you mean"),
        ("nothing.like.it", "no release of DeepSpeed has a key 'nothing.like.it'"),
        ("nvme_path", "zero_optimization.offload_optimizer.nvme_path"),
    ],
)
@pytest.mark.parametrize("form", ["full", "json"])
def test_explain_suggests_nearest_key(asked: str, said: str, form: str, config: Path) -> None:
    flags = ("--explain", asked, "--output-format", form)
    assert said in refused(run("resolve", config, *flags))


def test_explain_accepts_unique_last_name(config: Path) -> None:
    for name in ("stage", "zero_optimization.stage", "/zero_optimization/stage"):
        done = run("resolve", config, "--explain", name)
        assert done.returncode == 0
        assert done.stdout.startswith("zero_optimization.stage = 2: set in the file")
    done = run("resolve", config, "--explain", "enabled")
    assert done.stdout.startswith("bf16.enabled = true")


def test_explain_of_unset_key(config: Path) -> None:
    done = run("resolve", config, "--explain", "steps_per_print")
    assert (done.returncode, done.stdout) == (
        0,
        "steps_per_print is not set and has no resolved value\n",
    )


def test_implausible_rank_count_is_rejected(config: Path) -> None:
    assert "--gpus: 800000000 ranks" in refused(run("validate", config, "--gpus", 800_000_000))


def test_accelerate_yaml_is_not_converted_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: DEEPSPEED\nnum_processes: 2\n")
    assert "accelerate's YAML already" in refused(run("convert", path, "--to", "accelerate"))

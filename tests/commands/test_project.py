"""``[tool.dsconfig]``: model and devices of a project; ``init`` infers the target program."""

import json
from pathlib import Path

import pytest

import command_line
from command_line import Done

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}
SETTINGS = """
[tool.dsconfig]
model = "meta-llama/Llama-3.1-8B"
devices = "4 x a100-80gb"
runtime = "accelerate"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    return tmp_path


def run(folder: Path, *arguments: object) -> Done:
    return command_line.run(*arguments, cwd=folder)


def test_flags_override_model_and_devices_of_project(project: Path) -> None:
    done = run(project, "estimate", "ds.json", "--seq-len", 512)
    assert done.stdout.startswith("llama-3-8b: 8.03e9 parameters on 4 x A100-SXM4-80GB"), done
    assert "target: accelerate" in done.stdout and "pyproject.toml" in done.stderr
    flags = ("--model", "gpt2", "--device", "h100", "--gpus", 2, "--runtime", "deepspeed")
    own = run(project, "estimate", "ds.json", "--seq-len", 512, *flags)
    assert own.stdout.startswith("gpt2: 124e6 parameters on 2 x H100") and not own.stderr


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("tune", "--seq-len", 2048), "4 x A100-SXM4-80GB"),
        (("plan", "ds.json"), "8,030,261,248 parameters"),
        (("init",), "llama-3-8b on 4 x A100-SXM4-80GB"),
        (("estimate", "--fit", "--seq-len", 512), "on 4 x A100-SXM4-80GB"),
    ],
)
def test_commands_use_model_and_devices_of_project(
    command: tuple[object, ...], expected: str, project: Path
) -> None:
    done = run(project, *command)
    assert expected in done.stdout, done.stdout + done.stderr


def test_plan_file_ignores_project(project: Path) -> None:
    flags = ("--model", "gpt2", "--gpus", 2, "--device", "cpu")
    assert run(project, "plan", "ds.json", *flags, "-o", "plan.json").returncode == 0
    shown = run(project, "plan", "plan.json")
    assert shown.returncode == 0 and "gpt2" in shown.stdout and "pyproject" not in shown.stderr


def test_project_devices_are_parsed(project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.dsconfig]\ndevices = ""\n')
    done = run(project, "tune", "--seq-len", 512)
    assert done.returncode == 2 and '"8 x h100"' in done.stderr
    (project / "pyproject.toml").write_text('[tool.dsconfig]\ndevices = "h100"\n')
    one = run(project, "estimate", "--params", "1e9", "--gpus", 3)
    assert "on 3 x H100" in one.stdout


def test_init_writes_for_program_that_references_the_file(tmp_path: Path) -> None:
    (tmp_path / "args.yaml").write_text("deepspeed: ds.json\nbf16: true\n")
    world = ("--params", "1e9", "--gpus", 2, "--device", "h100")
    done = run(tmp_path, "init", "-o", "ds.json", *world)
    assert "target: transformers" in done.stderr
    assert "args.yaml, which references it" in " ".join(done.stderr.split())
    written = json.loads((tmp_path / "ds.json").read_text())
    assert written["train_micro_batch_size_per_gpu"] == "auto"
    inferred = run(tmp_path, "init", *world)
    assert json.loads(inferred.stdout)["train_micro_batch_size_per_gpu"] != "auto"
    given = run(tmp_path, "init", "--training-args", "args.yaml")
    assert "target: transformers" in given.stderr and '"auto"' in given.stdout


def test_project_program_deepspeed_does_not_apply_to_accelerate_yaml(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dsconfig]\nruntime = "deepspeed"\n')
    (tmp_path / "a.yaml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 3\nnum_processes: 8\n"
    )
    assert "target: accelerate" in run(tmp_path, "validate", "a.yaml").stderr


def test_wrong_program_of_project_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dsconfig]\nruntime = "deepsped"\n')
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    done = run(tmp_path, "validate", "ds.json")
    assert done.returncode == 2
    assert "pyproject.toml: runtime: 'deepsped' is not one of" in done.stderr


def test_unknown_release_of_project_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dsconfig]\ndeepspeed-version = "0.99"\n')
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    for command in ("validate", "resolve"):
        done = run(tmp_path, command, "ds.json")
        assert done.returncode == 2
        assert "pyproject.toml: deepspeed-version: '0.99' is not a known" in done.stderr

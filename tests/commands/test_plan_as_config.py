"""A plan given to a command that reads a config."""

from pathlib import Path

import pytest

from command_line import run


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 1}}')
    done = run("plan", "ds.json", "--gpus", 2, "-o", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / "plan.json"


def test_validate_reports_one_finding(plan: Path) -> None:
    done = run("validate", plan.name, cwd=plan.parent)
    assert done.returncode == 1 and done.stdout.count("error[") == 1
    assert "error[DSC012]: this is a plan, not a ds_config" in done.stdout
    assert "`dsconfig plan FILE`" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("resolve", "plan.json"),
        ("explain", "plan.json"),
        ("convert", "plan.json", "--to", "json"),
        ("diff", "ds.json", "plan.json"),
        ("estimate", "plan.json", "--model", "gpt2", "--gpus", 1),
    ],
)
def test_other_commands_name_those_that_read_a_plan(plan: Path, command: tuple[object]) -> None:
    done = run(*command, cwd=plan.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert "this is a plan, not a config; show it with `dsconfig plan plan.json`" in done.stderr

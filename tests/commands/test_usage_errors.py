"""Usage errors have one style, and list every missing fact at once."""

import os
from pathlib import Path

import pytest

import command_line
import forked_python
from command_line import Done
from dsconfig.project import settings
from validate.test_command import BAD, GOOD, Run, put, run

__all__ = ["run"]

CONFIG = '{"train_batch_size": "auto", "zero_optimization": {"stage": 3}}'


def call(folder: Path, *arguments: str) -> Done:
    if arguments[0] == "checkpoint":  # imports torch
        environment = {**os.environ, "COLUMNS": "120"}
        return forked_python.run(
            "-m", "dsconfig", *arguments, environment=environment, folder=folder
        )
    return command_line.run(*arguments, cwd=folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("validate", "--nope"), "no such option: --nope"),
        (("estimate", "--gpu", "8"), "no such option: --gpu; did you mean --gpus?"),
        (("schema", "--deepspeed", "1"), "no such option: --deepspeed; did you mean --deepspeed-v"),
        (
            ("validate", "--gpus", "many"),
            "--gpus: expected an integer",
        ),
        (("explain",), "missing argument 'KEY|RULE|FILE'"),
        (("tune", "ds.json"), "got unexpected extra argument"),
        (("convert", "ds.json", "--to", "x"), "--to: 'x' is not one of"),
        (("resolve", "missing.json"), "missing.json: file not found"),
        (("checkpoint", "verify", "missing"), "missing: directory not found"),
        (("nosuch",), 'unknown command "nosuch"'),
        (("run", "train.py", "--lr", "1e-4"), "train.py is a script: specify a config first"),
    ],
)
def test_usage_error_is_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    result = call(tmp_path, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"dsconfig: error: {message}")


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (("estimate",), ("--model", "--gpus")),
        (("estimate", "ds.json"), ("--model", "--gpus")),
        (("tune",), ("--model", "--gpus", "--device", "--seq-len")),
    ],
)
def test_all_missing_facts_are_listed(
    tmp_path: Path, arguments: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    (tmp_path / "ds.json").write_text(CONFIG)
    result = call(tmp_path, *arguments)
    assert result.returncode == 2 and all(flag in result.stderr for flag in flags)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("estimate", "ds.json"), "--training-args nope.json"),
        (("estimate", "ds.json"), "--accelerate-config nope.yaml"),
        (("estimate", "ds.json"), "--model nope.json"),
        (("estimate", "ds.json"), "--log nope.log"),
        (("validate", "ds.json"), "--baseline nope.json"),
        (("run", "ds.json", "--", "ds.json"), "--hostfile nope"),
        (("doctor",), "--log nope.log"),
    ],
)
def test_missing_file_of_any_option_has_one_message(
    tmp_path: Path, command: tuple[str, ...], option: str
) -> None:
    (tmp_path / "ds.json").write_text(CONFIG)
    name, file = option.split()
    result = call(tmp_path, command[0], name, file, *command[1:])
    assert result.returncode == 2
    assert result.stderr.startswith(f"dsconfig: error: {name}: {file}: file not found")


def test_missing_file_is_reported_as_unreadable_input(run: Run) -> None:
    result = run("missing.json")
    assert (result.code, result.out) == (2, "")
    assert "dsconfig: error: missing.json: file not found" in result.err
    put("ds.json", BAD)
    both = run("missing.json", "ds.json")
    assert both.code == 2 and "error[DSC021]" in both.out and "DSC001" not in both.out
    assert "2 files, 1 error, 0 warnings, 1 note, 1 unreadable" in both.err


@pytest.mark.parametrize("selector", ["DSC999", "DSC6666", "no-such-rule", "everything", "DSC89"])
@pytest.mark.parametrize("key", ["select", "ignore", "per-file-ignores"])
def test_unknown_rule_is_an_error_in_flags_and_settings(run: Run, key: str, selector: str) -> None:
    put("ds.json", GOOD)
    if key != "per-file-ignores":
        flag = run("ds.json", f"--{key}", selector)
        assert flag.code == 2 and selector in flag.err
    value = f'{{"*.json" = ["{selector}"]}}' if key == "per-file-ignores" else f'["{selector}"]'
    put("pyproject.toml", f"[tool.dsconfig]\n{key} = {value}\n")
    settings.clear_cache()
    result = run("ds.json")
    assert result.code == 2 and selector in result.err and "pyproject.toml" in result.err


@pytest.mark.parametrize("selector", ["DSC412", "dsc4", "DSC", "unknown-key", "DSC150"])
def test_known_rule_is_accepted_in_flags_and_settings(run: Run, selector: str) -> None:
    put("ds.json", GOOD)
    assert run("ds.json", "--ignore", selector).code == 0
    put("pyproject.toml", f'[tool.dsconfig]\nignore = ["{selector}"]\n')
    settings.clear_cache()
    assert run("ds.json").code == 0


def test_unknown_rule_name_has_a_suggestion(run: Run) -> None:
    result = run(put("ds.json", GOOD), "--ignore", "unknown-keys")
    assert result.code == 2 and 'did you mean "unknown-key"?' in result.err

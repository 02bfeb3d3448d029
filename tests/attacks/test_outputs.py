"""Hostile texts of a file, an argument or a log, through whole commands.

What a command writes is read by a parser of its language: it has the text, and nothing else.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from ruamel.yaml import YAML

from command_line import Done, run
from dsconfig.report import writers
from hostile import HOSTILE
from report.findings import read_sarif

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
KEYS = {text: {text: [text]} for text in HOSTILE}
ARGUMENTS = [text for text in HOSTILE if "\0" not in text]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clean.json").write_text(json.dumps(CONFIG))
    (tmp_path / "hostile.json").write_text(json.dumps({**CONFIG, **KEYS}))
    (tmp_path / "train.py").write_text("")
    return tmp_path


def is_harmless(text: str) -> bool:
    """Return whether printed text has no control characters and no commands for a CI runner."""
    lines = text.split("\n")
    return not any(map(writers.is_control, "".join(lines))) and not any(
        line.strip().startswith("::") or "##[" in line for line in lines
    )


@pytest.mark.parametrize(
    "words",
    [
        ("validate", "hostile.json"),
        ("validate", "hostile.json", "--output-format", "concise"),
        ("explain", "hostile.json"),
        ("explain", "hostile.json", "--output-format", "json"),
        ("diff", "clean.json", "hostile.json"),
        ("diff", "clean.json", "hostile.json", "--output-format", "json"),
        ("resolve", "hostile.json", "--gpus", "1"),
        ("plan", "hostile.json", "--gpus", "1"),
        ("estimate", "hostile.json", "--gpus", "1", "--model", "gpt2"),
    ],
    ids=" ".join,
)
def test_keys_and_values_reach_a_terminal_as_text(words: tuple[str, ...], folder: Path) -> None:
    done = run(*words, cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    assert is_harmless(done.stdout) and is_harmless(done.stderr)


def test_sarif_shows_keys_without_links(folder: Path) -> None:
    keys = ["[x](1)", "\\[y\\](2)"]
    (folder / "hostile.json").write_text(json.dumps({**CONFIG, **dict.fromkeys(keys, 1)}))
    done = run("validate", "hostile.json", "--output-format", "sarif", cwd=folder)
    (log,) = json.loads(done.stdout)["runs"]
    read = [read_sarif(result["message"]["text"]) for result in log["results"]]
    assert not any(targets for _, targets in read)
    assert all(any(key in shown for shown, _ in read) for key in keys)


def test_names_reach_a_terminal_as_text(folder: Path) -> None:
    for name in ("a\n::error::owned.json", "\x1b]0;owned\x07.json", "##[error]x.json"):
        (folder / name).write_text(json.dumps({**CONFIG, "unknown": 1}))
        done = run("validate", name, cwd=folder)
        assert done.returncode == 1
        assert is_harmless(done.stdout) and is_harmless(done.stderr)


@pytest.mark.parametrize("model", ["a\n::error::owned", "\x1b]0;owned\x07"])
def test_settings_reach_a_terminal_as_text(model: str, folder: Path) -> None:
    settings = f"[tool.dsconfig.facts]\nmodel = {json.dumps(model)}\n"
    (folder / "pyproject.toml").write_text(settings)
    for command in ("validate", "estimate"):
        done = run(command, "clean.json", cwd=folder)
        assert is_harmless(done.stdout) and is_harmless(done.stderr)


def converted(folder: Path, form: str) -> str:
    done = run("convert", "hostile.json", "--to", form, cwd=folder)
    assert done.returncode == 0, done.stderr
    run("convert", "hostile.json", "--to", form, "-o", "written", cwd=folder)
    assert done.stdout.encode() == (folder / "written").read_bytes()
    return done.stdout


def test_module_has_no_statement_of_a_key(folder: Path) -> None:
    clean = run("convert", "clean.json", "--to", "fsdp2", cwd=folder).stdout
    hostile = converted(folder, "fsdp2")
    named = hostile.replace("hostile.json", "clean.json")
    assert ast.dump(ast.parse(named)) == ast.dump(ast.parse(clean))


def test_torchtitan_has_no_setting_of_a_key(folder: Path) -> None:
    clean = run("convert", "clean.json", "--to", "torchtitan", cwd=folder).stdout
    assert tomllib.loads(converted(folder, "torchtitan")) == tomllib.loads(clean)


def test_accelerate_has_no_setting_of_a_key(folder: Path) -> None:
    clean = run("convert", "clean.json", "--to", "accelerate-fsdp2", cwd=folder).stdout
    hostile = converted(folder, "accelerate-fsdp2")
    for read in (YAML(typ="safe", pure=True).load, yaml.safe_load):
        assert read(hostile) == read(clean)


def job(folder: Path, form: str, *arguments: str) -> Done:
    flags = ("--gpus", "1", "--device", "h100-80gb")
    return run("run", "clean.json", *flags, "--emit", form, "--", *arguments, cwd=folder)


def test_kubeflow_passes_each_argument(folder: Path) -> None:
    done = job(folder, "kubeflow", "train.py", *ARGUMENTS)
    assert done.returncode == 0, done.stderr
    for read in (YAML(typ="safe", pure=True).load, yaml.safe_load):
        command = read(done.stdout)["spec"]["trainer"]["command"]
        given = command[command.index("--") + 2 :]
        assert given == [argument.replace("$", "$$") for argument in ARGUMENTS]


@pytest.mark.parametrize("script", ["7b_train.py", f"{'a' * 100}.py", "Zug-ähnlich.py", "_.py"])
def test_name_of_a_job_is_accepted(script: str, folder: Path) -> None:
    (folder / script).write_text("")
    name = yaml.safe_load(job(folder, "kubeflow", script).stdout)["metadata"]["name"]
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?", name)
    slurm = job(folder, "slurm", script).stdout
    assert re.search(r"^#SBATCH --job-name=[\w.+-]{1,64}$", slurm, re.MULTILINE | re.ASCII)


def arguments_of(script: str, folder: Path) -> list[str]:
    """Run a job script with programs that print their arguments."""
    for program in ("srun", "ssh"):
        (folder / program).write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
        (folder / program).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, check=True
    )
    return os.fsdecode(done.stdout).split("\0")[:-1]


def test_slurm_passes_each_argument(folder: Path) -> None:
    done = job(folder, "slurm", "train.py", *ARGUMENTS)
    given = arguments_of(done.stdout, folder)
    assert given[given.index("train.py") + 1 :] == ARGUMENTS


def test_skypilot_passes_each_argument(folder: Path) -> None:
    done = job(folder, "skypilot", "train.py", *ARGUMENTS)
    command = yaml.safe_load(done.stdout)["run"]
    given = arguments_of(command.replace("dsconfig", "srun", 1), folder)
    assert given[given.index("train.py") + 1 :] == ARGUMENTS


def test_argument_that_is_not_utf_8(folder: Path) -> None:
    command = [sys.executable, "-m", "dsconfig", "run", "clean.json", "--gpus", "1", "--emit"]
    for form in ("slurm", "kubeflow"):
        done = subprocess.run(
            [*command, form, "--", "train.py", b"a\xffb"], cwd=folder, capture_output=True
        )
        if form == "slurm":
            assert b"a\xffb" in done.stdout
        else:
            assert done.returncode == 2 and done.stdout == b""


def test_comment_shows_keys_as_code(folder: Path) -> None:
    done = run("diff", "clean.json", "hostile.json", "--output-format", "markdown", cwd=folder)
    rows = [line for line in done.stdout.splitlines() if line.startswith(("| `", "| <code>"))]
    assert len(rows) == len(HOSTILE)
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)|<code>.*?</code>", "", "\n".join(rows))
    assert not re.search(r"@\w|!\[|\]\(|<[a-z!]|https?://", outside)


def test_names_in_a_log(folder: Path) -> None:
    log = folder / "train.log"
    log.write_text(
        "|   0  \x1b]0;owned\x07 ::error::GPU        On  | 00000000:07:00.0 Off |\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 ##[x]\n"
    )
    done = run("doctor", "--log", "train.log", cwd=folder)
    assert done.returncode == 0
    assert is_harmless(done.stdout) and is_harmless(done.stderr)


@pytest.mark.parametrize(
    "words",
    [("dsengine", "--OWNED"), ("dsengine.deepspeed.launcher.runner", "-i", "OWNED", __file__)],
    ids=["dsengine", "deepspeed"],
)
def test_errors_of_dsengine_reach_a_terminal_as_text(words: tuple[str, ...]) -> None:
    given = [word.replace("OWNED", "\x1b]0;owned\x07\n::error::owned") for word in words]
    done = subprocess.run([sys.executable, "-m", *given], capture_output=True, text=True)
    assert done.returncode == 2 and "owned" in done.stderr
    assert is_harmless(done.stderr)


def own_module(folder: Path, **environment: str) -> Any:
    """Run a job in a folder whose modules have the names of Python's own."""
    for name in ("types.py", "random.py", "json.py"):
        (folder / name).write_text("raise SystemExit('imported')")
    script = job(folder, "slurm", "train.py").stdout
    start = script[script.index(sys.executable) :].replace("\\\n", "").split(" run ")[0]
    return subprocess.run(
        ["bash", "-c", f"{start} --version"], cwd=folder, capture_output=True, text=True
    )


def test_job_imports_nothing_of_its_folder(folder: Path) -> None:
    done = own_module(folder)
    assert done.returncode == 0 and "imported" not in done.stdout + done.stderr

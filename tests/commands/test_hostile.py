"""Hostile input: no tracebacks, no unbounded work, no terminal escape codes."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import command_line
import dsconfig
from command_line import Done
from dsconfig.source.pointer import MAX_DEPTH
from suite.limits import scaled

ESCAPE, DIRECTION = "\x1b[31mX\x1b]0;t\x07", "\u202eabc\u2066"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
CLEAN: dict[str, Any] = {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
ODD = CLEAN | {ESCAPE: 1, DIRECTION: "[bold]", "x": {DIRECTION: ESCAPE}}
MANY_DIGITS = "9" * 6000
DEEP = '{"a":' * 5000 + "1" + "}" * 5000
AS_PYTHON = "ds_config = {{'train_batch_size': {}, 'zero_optimization': {{'stage': 2}}}}\n"


def run(*arguments: Any, folder: Path | None = None) -> Done:
    done = command_line.run(*arguments, cwd=folder)
    assert done.returncode in (0, 1, 2), done.stderr
    assert "Traceback" not in done.stderr
    return done


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# --- what is printed


@pytest.mark.parametrize(
    "command",
    [
        ("validate", "FILE"),
        ("validate", "FILE", "--output-format", "github"),
        ("validate", "FILE", "--output-format", "junit"),
        ("validate", "FILE", "--diff"),
        ("resolve", "FILE"),
        ("resolve", "FILE", "--explain", ESCAPE),
        ("plan", "FILE"),
        ("diff", "FILE", "OTHER"),
        ("models", ESCAPE),
        ("devices", DIRECTION),
        ("validate", "OTHER", "--set", DIRECTION),
        ("plan", "OTHER", "--gpus", "1", "-o", f"gone/{ESCAPE}"),
        (ESCAPE,),
    ],
    ids=lambda command: "-".join(command)[:30].encode("unicode_escape").decode(),
)
def test_no_control_characters_are_printed(command: tuple[str, ...], tmp_path: Path) -> None:
    odd = tmp_path / "odd.json"
    odd.write_text(json.dumps(ODD, ensure_ascii=False))
    places = {"FILE": odd, "OTHER": written(tmp_path, "clean.json", CLEAN)}
    done = run(*(places.get(word, word) for word in command))
    assert not OBEYED.search(done.stdout + done.stderr)


def test_plan_escapes_key_names(tmp_path: Path) -> None:
    from dsconfig.commands.plan_tables import coverage_lines
    from dsconfig.planner.plan import Coverage, Status

    class Shown:
        coverage = (Coverage(pointer=f"/{ESCAPE}", status=Status.INERT, by=DIRECTION),)

    [line] = coverage_lines(Shown())  # pyright: ignore[reportArgumentType]
    assert not OBEYED.search(line) and "\\x1b[31mX" in line


def test_log_captions_are_escaped(tmp_path: Path) -> None:
    head = "[2024-01-01 00:00:00,000] [INFO] [utils.py:10{}:see_memory_usage] "
    sizes = "MA 1.0 GB         Max_MA 1.0 GB         CA 1.0 GB         Max_CA 1 GB "
    caption = f"{ESCAPE}{DIRECTION}caption [bold]"
    text = f"{head.format(0)}{caption}\n{head.format(1)}{sizes}\n"
    done = run("doctor", "--log", written(tmp_path, "t.log", text))
    assert "[bold]" in done.stdout and not OBEYED.search(done.stdout)


@pytest.mark.parametrize("name", ["<script>alert(1)<_script>.json", "<!--<script>.json"])
def test_html_escapes_names(name: str, tmp_path: Path) -> None:
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 256, "n_positions": 64}
    model = written(tmp_path, name, {"model_type": "gpt2", **sizes})
    page = tmp_path / "page.html"
    flags = ("--gpus", 2, "--device", "h100", "--seq-len", 64, "--html", page)
    run("estimate", written(tmp_path, "ds.json", CLEAN), "--model", model, *flags)
    text = page.read_text()
    assert text.count("<script") == 1 and "<!--" not in text


# --- what is read

LAUNCH = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("digits.json", f'{{"train_batch_size": {MANY_DIGITS}}}'),
        ("digits.yaml", f"train_batch_size: {MANY_DIGITS}\nzero_optimization: {{stage: 2}}\n"),
        ("chain.py", AS_PYTHON.format("*".join(["99999"] * 900))),
        ("tower.py", AS_PYTHON.format("((((10**100)**100)**100)**100)**100")),
        ("squares.py", "a=9\nb=a*a\n" + AS_PYTHON.format("b**99**99")),
        ("long.yaml", f"deepspeed: {'a' * 300}.json\n"),
        ("longer.yaml", f"deepspeed: {'a/' * 5000}b.json\n"),
        ("quotes.json", "{" + '"' * 20_000),
        ("launch.yaml", f"{LAUNCH}mixed_precision: [bf16]\n"),
        ("deep.json", DEEP),
        ("deep.yaml", f"zero_optimization: {'[' * 3000}{']' * 3000}\n"),
    ],
)
def test_odd_files_are_validated(name: str, text: str, tmp_path: Path) -> None:
    run("validate", written(tmp_path, name, text))


@pytest.mark.parametrize(
    "command",
    [
        ("validate", "CLEAN", "--baseline", "DEEP"),
        ("estimate", "--gpus", 1, "--model", "DEEP"),
        ("resolve", "CLEAN", "--training-args", "DEEP"),
        ("resolve", "CLEAN", "--accelerate-config", "DEEP"),
        ("resolve", "CLEAN", "--accelerate-config", "DEEP.yaml"),
        ("plan", "DEEP"),
        ("validate", "CLEAN", "--baseline", "DIGITS"),
        ("estimate", "--gpus", 1, "--model", "DIGITS"),
    ],
)
def test_invalid_fact_files_are_rejected(command: tuple[Any, ...], tmp_path: Path) -> None:
    places = {
        "CLEAN": written(tmp_path, "clean.json", CLEAN),
        "DEEP": written(tmp_path, "deep.json", DEEP),
        "DEEP.yaml": written(tmp_path, "deep.yaml", DEEP),
        "DIGITS": written(tmp_path, "digits.json", MANY_DIGITS),
    }
    assert run(*(places.get(word, word) for word in command)).returncode in (1, 2)


@pytest.mark.parametrize("count", ["1e308", "1e30", "1e16"])
@pytest.mark.parametrize("command", ["estimate", "plan", "tune", "init"])
def test_implausible_parameter_count_is_rejected(count: str, command: str, tmp_path: Path) -> None:
    file = [written(tmp_path, "ds.json", CLEAN)] if command == "plan" else []
    done = run(command, *file, "--params", count, "--gpus", 8)
    assert done.returncode == 2 and "more than any model has" in " ".join(done.stderr.split())


@pytest.mark.parametrize("levels", [3000, 20_000])
def test_override_depth_is_limited(levels: int, tmp_path: Path) -> None:
    file = written(tmp_path, "ds.json", CLEAN)
    done = run("validate", file, "--set", f"{'a.' * levels}a=1")
    assert done.returncode == 2 and str(MAX_DEPTH) in done.stderr


def test_overlong_file_name() -> None:
    assert "too long" in run("validate", "a" * 100_000).stderr


@pytest.mark.parametrize(
    "text",
    [
        "tool = 1",
        "[[tool]]\ndsconfig = 1",
        "[tool]\ndsconfig = [1]",
        f"[tool.dsconfig]\nselect = {'[' * 2000}{']' * 2000}",
        f"[tool.dsconfig]\nx = {MANY_DIGITS}",
        f"[tool.dsconfig]\ndevices = '{MANY_DIGITS} x h100'",
    ],
)
def test_invalid_project_settings(text: str, tmp_path: Path) -> None:
    written(tmp_path, "pyproject.toml", text)
    written(tmp_path, "ds_config.json", CLEAN)
    run("validate", folder=tmp_path)


def test_special_files_are_skipped(tmp_path: Path) -> None:
    for name in ("ds_config1.json", "x.json", "y.yaml", "pyproject.toml"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "ds_config2.json").symlink_to("/dev/zero")
    (tmp_path / "ds_config3.json").mkdir()
    written(tmp_path, "ds_config4.json", CLEAN)
    done = run("validate", folder=tmp_path)
    assert done.stderr.count("1 file, 0 errors") == 1


def test_named_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f"echo '{json.dumps(CLEAN)}' > {pipe}"]):
        assert run("plan", pipe, "--gpus", 2).returncode == 0


# --- what programs hand over


def shared(levels: int) -> dict[str, Any]:
    """2 to the power of ``levels`` paths, in as many dicts as levels."""
    part: dict[str, Any] = {}
    for _ in range(levels):
        part = {"a": part, "b": part}
    return part


def test_exponential_dict_is_rejected() -> None:
    [found] = dsconfig.validate(dsconfig.read({**CLEAN, "x": shared(40)})).diagnostics
    assert "values" in found.message
    assert dsconfig.read({**CLEAN, "x": shared(3)}).value["x"] == shared(3)


@pytest.mark.parametrize("key", [1, None, True, (1, 2), 1.5])
def test_keys_are_converted_as_in_json(key: Any) -> None:
    for config in ({key: 1}, {**CLEAN, key: {key: {2: 3}}}, {"zero_optimization": {key: [{1: 2}]}}):
        document = dsconfig.read(config)
        json.loads(json.dumps(document.value))
        dsconfig.validate(document)
    config: dict[Any, Any] = {1: None, "a": [{None: True}]}
    assert dsconfig.read(config).value == {"1": None, "a": [{"null": True}]}


def test_numpy_values_are_accepted() -> None:
    numpy = pytest.importorskip("numpy")
    for value in (numpy.arange(5), numpy.int64(8), numpy.float32(1.5), numpy.ones((2, 2))):
        for config in (CLEAN | {"train_batch_size": value}, CLEAN | {"zero_optimization": value}):
            dsconfig.validate(dsconfig.read(config))


# --- closed and full streams


@pytest.mark.parametrize("command", [("--version",), ("models",), ("validate", "FILE")])
@pytest.mark.parametrize("stream", [">&-", ">&- 2>&- <&-", ">/dev/full"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_or_full_streams(
    command: tuple[str, ...], stream: str, unbuffered: str, tmp_path: Path
) -> None:
    file = str(written(tmp_path, "ds.json", CLEAN))
    words = " ".join(file if word == "FILE" else word for word in command)
    line = f"{sys.executable} -m dsconfig {words} {stream}"
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, timeout=scaled(60), env=environment
    )
    assert done.returncode == (2 if "full" in stream else 0), done.stderr
    assert ("cannot be written" in done.stderr) is ("full" in stream)
    assert "Traceback" not in done.stderr


def test_endless_log_is_rejected() -> None:
    done = run("doctor", "--log", "/dev/zero")
    assert done.returncode == 2 and "/dev/zero is a device" in done.stderr


@pytest.mark.parametrize("text", ["a: &x\n  b: *x\n", "&x [{zero_optimization: *x}]\n"])
def test_recursive_yaml_alias_is_reported(text: str, tmp_path: Path) -> None:
    done = run("validate", written(tmp_path, "self.yaml", text))
    output = " ".join((done.stdout + done.stderr).split())
    assert "a YAML alias refers to a node that contains it" in output


@pytest.mark.parametrize("stage", [math.inf, -math.inf, math.nan])
def test_non_finite_stage_is_not_resolved(stage: float) -> None:
    config = {"train_batch_size": 1, "zero_optimization": {"stage": stage}}
    assert dsconfig.resolve(config).effective is None
    assert not dsconfig.validate(config).ok

"""Environments that a user does not expect to matter, and input of any size."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import dsconfig
from command_line import run
from dsconfig import browser
from dsconfig.facts import machine
from waiting import completed

CONFIG = {"train_batch_size": 8, "gradient_cliping": 1, "zero_optimization": {"stage": 2}}
DSCONFIG = (sys.executable, "-m", "dsconfig")


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "words", ["--help", "validate --help", "validate ds.json", "explain DSC404"]
)
def test_python_without_docstrings_prints_the_same(words: str) -> None:
    usual = run(*words.split())
    variables = {**os.environ, "PYTHONOPTIMIZE": "2", "COLUMNS": "120"}
    without = completed([*DSCONFIG, *words.split()], variables, 60.0)
    assert (without.returncode, without.stdout) == (usual.returncode, usual.stdout)


def test_json_on_a_terminal_that_has_only_ascii(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({**CONFIG, "\U0001f600": 1}))
    variables = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [*DSCONFIG, "explain", "ds.json", "--output-format", "json"]
    done = completed(command, variables, 60.0)
    assert done.stdout.isascii()
    assert any("\U0001f600" in each["path"] for each in json.loads(done.stdout)["keys"])


def test_cache_of_an_unknown_user_has_no_models() -> None:
    done = run("estimate", "ds.json", "--model", "a/b", environment={"HF_HOME": "~nosuchuser/x"})
    assert done.returncode == 2 and "not in the catalogue" in done.stderr


def test_home_is_not_required() -> None:
    done = run("estimate", "ds.json", "--model", "a/b", environment={"HOME": None})
    assert done.returncode == 2 and "not in the catalogue" in done.stderr


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("printf '\\377\\376, 100\\n'", ""),
        ("printf 'a, %s\\n' 99999999999999999999", ""),
        ("exec sleep 60", "did not answer"),
        ("printf '\\377' >&2; exit 9", "\ufffd"),
    ],
)
def test_nvidia_smi_that_fails(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(machine, "NVIDIA_SMI_SECONDS", 0.5 if "sleep" in script else 60)
    listed = machine.local_gpus()
    assert listed == [] or listed[0][0] == "\ufffd\ufffd"
    if reason:
        with pytest.raises(OSError, match=reason):
            machine.nvidia_smi("name")


def test_working_directory_that_was_removed(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    script = 'cd gone && rmdir ../gone && exec "$@"'
    watch = ["validate", "--watch", str(tmp_path / "ds.json"), "other.json"]
    # Python itself does not start there with a relative path.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = completed(["bash", "-c", script, "bash", *DSCONFIG, *watch], variables, 60.0)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "dsconfig: error: " in done.stderr


def message(content: dict[str, object]) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", **content}).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


EXIT = message({"method": "exit"})


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (message({"id": 1, "method": "shutdown"}) + EXIT, 0),
        (EXIT, 1),
        (b"Content-Length: %b\r\n\r\n{}" % (b"9" * 5000), 0),
        (b"Content-Length: 999999999999\r\n\r\n{}", 0),
    ],
    ids=["exit", "exit without shutdown", "long number", "long message"],
)
def test_language_server_ends(request_: bytes, code: int) -> None:
    parameters = {"processId": None, "rootUri": None, "capabilities": {}}
    start = message({"id": 0, "method": "initialize", "params": parameters})
    done = subprocess.run([*DSCONFIG, "lsp"], input=start + request_, capture_output=True)
    assert done.returncode == code, done.stderr


def test_log_in_a_named_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.\n"
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert [each.signature for each in dsconfig.diagnose(pipe).failures] == ["gpu-out-of-memory"]
    writer.join()


def answer(text: str, **more: str) -> str:
    return browser.answer(json.dumps({"kind": "check", "text": text, **more}))


def test_answer_of_the_page_grows_with_its_text() -> None:
    keys = [f'"gradient_cliping{number}": 1' for number in range(1500)]
    small, large = (answer("{" + ",".join(keys[:count]) + "}") for count in (750, 1500))
    assert len(large) < 2.3 * len(small) + browser.LARGEST_ANSWER


def test_page_reads_text_that_is_not_unicode() -> None:
    assert "report" in json.loads(answer('{"a": "\ud800"}'))
    assert "error" in json.loads(answer("{}", model_config="\ud800"))

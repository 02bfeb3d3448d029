"""The command ``dsengine``: programs, exit codes and signals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dsengine
from dsengine import startup

ROOT = Path(__file__).parents[2]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dsengine", *arguments]


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "engine")])
    return os.environ | {"PYTHONPATH": paths} | more


def run(
    *arguments: str, folder: Path | None = None, **more: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments), env=environment(**more), cwd=folder, capture_output=True, text=True
    )


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_script_runs_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "train.py").write_text(
        "import beside, deepspeed, sys\nprint(__name__, sys.argv[1:], deepspeed.__name__)\n"
    )
    done = run("train.py", "--help", "-m", folder=tmp_path)
    assert done.stdout == "__main__ ['--help', '-m'] dsengine\n", done.stderr


@pytest.mark.parametrize(
    ("module", "argument"),
    [
        ("json.tool", "infile"),
        pytest.param(  # imports torch in a new interpreter
            "deepspeed.utils.zero_to_fp32", "checkpoint_dir", marks=pytest.mark.long
        ),
    ],
)
def test_module_runs_with_its_arguments(module: str, argument: str) -> None:
    done = run("-m", module, "--help")
    assert done.returncode == 0 and argument in done.stdout, done.stderr


def test_program_is_found_on_path_or_by_its_path(tmp_path: Path) -> None:
    tool = program(tmp_path / "tool", f'#!{sys.executable}\nprint(__import__("deepspeed"))\n')
    paths = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    for name, more in (("tool", {"PATH": paths}), (str(tool), {}), ("./tool", {})):
        done = run(name, folder=tmp_path, **more)
        assert "dsengine" in done.stdout, done.stderr


def test_programs_next_to_python_are_found() -> None:
    done = run(Path(sys.executable).name, "-c", "print(1)", PATH="/nowhere")
    assert done.stdout == "1\n", done.stderr


def test_launcher_of_deepspeed_is_on_path() -> None:
    done = run("bash", "-c", "command -v deepspeed")
    assert done.stdout == f"{Path(startup.PROGRAM_FOLDER, 'deepspeed')}\n", done.stderr


@pytest.mark.long  # imports torch in a new interpreter
def test_launcher_of_deepspeed_runs() -> None:
    done = run("bash", "-c", "exec deepspeed --help")
    usage = done.stdout.splitlines()[0]
    assert usage.startswith("usage: deepspeed"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "usage: dsengine"),
        (("-m",), 2, "-m requires a module"),
        (("--what",), 2, "unknown option --what"),
        (("absent.py",), 2, "can't open file 'absent.py'"),
        (("absent",), 127, "'absent' is not on PATH"),
        (("./absent",), 127, "'./absent': no such file"),
        (("plain",), 127, "use ./plain for the file in this directory"),
        (("./plain",), 126, "'./plain' is not executable"),
        (("./odd",), 126, "cannot run './odd'"),
        (("-m", "absent"), 1, "No module named absent"),
    ],
)
def test_missing_program_is_an_error(
    arguments: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    (tmp_path / "plain").write_text("text")
    program(tmp_path / "odd", "\0")
    done = run(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (code, "") and message in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_mode_is_an_error() -> None:
    done = run("true", DSENGINE="yes")
    assert done.returncode == 2 and "set it to 'required', or unset it" in done.stderr


def test_help_and_version() -> None:
    assert "DSENGINE=required" in run("--help").stdout
    assert run("--version").stdout == f"dsengine {dsengine.__version__}\n"


@pytest.mark.parametrize("code", [0, 7])
def test_exit_code_is_that_of_the_program(code: int) -> None:
    assert run("bash", "-c", f"exit {code}").returncode == code
    assert run("--", "bash", "-c", "kill -9 $$").returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_program(number: signal.Signals) -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(int(sys.argv[1]), lambda number, _: sys.exit(100 + number))\n"
        "print(os.getpid(), flush=True)\n"
        "signal.pause()\n"
    )
    words = command(sys.executable, "-c", code, str(int(number)))
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert int(started.stdout.readline()) == started.pid, "the program replaces the command"
        started.send_signal(number)
    assert started.returncode == 100 + number

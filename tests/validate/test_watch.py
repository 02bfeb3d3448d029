"""``dsconfig validate --watch`` and ``--show-settings``."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import run
from suite.limits import scaled
from waiting import lines_until

GOOD = '{"train_batch_size": 8, "zero_optimization": {"stage": 2}}'
BAD = GOOD.replace("2}", "9}")
READY = "watching for changes; Ctrl-C to stop\n"


class Watched:
    """A running ``validate --watch`` whose output is a pipe."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.job = subprocess.Popen(
            [sys.executable, "-m", "dsconfig", "validate", "--watch", *arguments],
            cwd=cwd,
            env={**os.environ, "COLUMNS": "100", "PYTHONUNBUFFERED": "1"},  # keeps the order
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def check_with(self, expected: str) -> None:
        """Read checks until one has this text: a write may be seen in several steps."""
        while expected not in self.next_check():
            pass

    def next_check(self) -> str:
        """Return the output of one check: the text up to the line READY."""
        return "".join(lines_until(READY, self.job, self.job.stdout)[:-1])

    def stop(self) -> tuple[int, str]:
        """Interrupt it; return the exit code and the remaining output."""
        self.job.send_signal(signal.SIGINT)
        rest, _ = self.job.communicate(timeout=scaled(120))
        return self.job.returncode, rest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ds_config.json").write_text(GOOD)
    return tmp_path


@pytest.fixture
def watched(folder: Path) -> Iterator[Watched]:
    started = Watched(".", cwd=folder)
    yield started
    started.job.kill()
    started.job.communicate()


def test_each_change_is_checked_until_an_interrupt(folder: Path, watched: Watched) -> None:
    watched.check_with("1 file, 0 errors, 0 warnings")
    config = folder / "ds_config.json"
    config.write_text(BAD)
    watched.check_with("error[DSC031]")
    renamed = folder / "new.tmp"  # as editors save
    renamed.write_text(GOOD)
    renamed.rename(config)
    watched.check_with("0 errors")
    assert watched.stop() == (130, "")


def test_new_files_and_project_settings_are_checked(folder: Path, watched: Watched) -> None:
    watched.next_check()
    (folder / "deep").mkdir()
    (folder / "deep" / "ds_config.json").write_text(BAD)
    watched.check_with("2 files, 1 error")
    (folder / "pyproject.toml").write_text('[tool.dsconfig]\nexclude = ["deep/*"]\n')
    watched.check_with("1 file, 0 errors")
    (folder / "pyproject.toml").write_text("[tool.dsconfig")
    watched.check_with("pyproject.toml: ")
    (folder / "pyproject.toml").unlink()
    watched.check_with("2 files, 1 error")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-",), "--watch requires files"),
        ((".", "--fix"), "--watch does not write files"),
        ((".", "--output-format", "json"), "choose the output format full or concise"),
    ],
)
def test_watching_rejects(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run("validate", "--watch", *arguments, cwd=folder)
    assert done.returncode == 2 and message in done.stderr


PROJECT = """[tool.dsconfig]
runtime = "deepspeed"
model = "gpt2"
devices = "4 x h100"
ignore = ["DSC403"]
per-file-ignores = {"ds_*" = ["DSC404"]}
"""


def settings(folder: Path, *flags: str) -> dict[str, tuple[str, str]]:
    """Return value and origin of each setting."""
    done = run("validate", "--show-settings", *flags, cwd=folder, columns=400)
    assert done.returncode == 0, done.stderr
    _, _, header, *rows = done.stdout.splitlines()
    at = header.index("value"), header.index("origin")
    return {
        line[: at[0]].strip(): (line[at[0] : at[1]].strip(), line[at[1] :].strip()) for line in rows
    }


def test_settings_without_a_project_are_defaults(folder: Path) -> None:
    shown = settings(folder)
    assert shown["project file"] == ("none", "")
    assert shown["runtime"] == ("deepspeed", 'default, no "auto" to fill in')
    assert shown["select"] == ("all rules", "default")
    assert shown["output-format"] == ("full", "default")


def test_settings_name_the_file_or_flag_they_come_from(folder: Path) -> None:
    project = folder / "pyproject.toml"
    project.write_text(PROJECT)
    file = str(project)
    shown = settings(folder, "--ignore", "DSC5", "--device", "a100-80gb", "--select", "DSC4")
    assert shown["runtime"] == ("deepspeed", file)
    assert shown["ignore"] == ("DSC5, DSC403", f"command line, {file}")
    assert shown["select"] == ("DSC4", "command line")
    assert shown["per-file-ignores"] == ("DSC404", file)
    assert shown["device"] == ("a100-80gb", "command line")
    assert shown["model"] == ("gpt2", file)
    assert shown["gpus"] == ("4", file)


def test_release_of_a_flag_and_format_of_a_variable(folder: Path) -> None:
    flags = ("--deepspeed-version", "0.16.4", "--output-format", "concise", "--runtime", "all")
    shown = settings(folder, *flags)
    assert shown["runtime"] == ("all", "command line")
    assert shown["output-format"] == ("concise", "command line")
    shown = settings(folder, "--deepspeed-version", "0.16.4")
    assert shown["deepspeed-version"] == ("0.16.4", "command line")

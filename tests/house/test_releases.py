"""``make releases``: what a new release changes, and the alarm when one is installed."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import releases
from dsconfig.schema import NEWEST
from release_facts import PROGRAMS, Program, facts_of

PROGRAM = Program("deepspeed", "0.19.8", ("runtime/config.py",))
BEFORE = '''
"""The config."""
GAS_DEFAULT = 1

class Config(Model):
    stage: int = Field(0, help="The stage.")
    offload: bool = False

    def check(self):
        if self.stage > 3:
            raise ValueError("stage")

def fill(config):
    config.fill_match("train_batch_size", 8)
'''
AFTER = '''
"""The configuration."""
GAS_DEFAULT = 2

class Config(Model):
    stage: int = Field(0, help="The ZeRO stage.")
    buckets: int = 5

    def check(self):
        if self.stage > 4:
            raise ValueError("stage")
        assert self.buckets, "buckets"

def fill(config):
    if config.stage == "auto":
        config.stage = 1
'''


def package(folder: Path, source: str) -> Path:
    (folder / "runtime").mkdir(parents=True)
    (folder / "runtime" / "config.py").write_text(source)
    return folder


def test_keys_checks_and_auto_are_compared(tmp_path: Path) -> None:
    before = facts_of(package(tmp_path / "before", BEFORE), PROGRAM)
    after = facts_of(package(tmp_path / "after", AFTER), PROGRAM)
    file = "runtime/config.py"
    check = f"{file}: Config.check(): raise ValueError('stage')"
    assert releases.differences(before, after) == [
        ("keys and defaults", f"+ {file}: Config.buckets: int = 5"),
        ("keys and defaults", f"- {file}: Config.offload: bool = False"),
        ("keys and defaults", f"~ {file}: GAS_DEFAULT: 1 -> 2"),
        ("checks", f"+ {file}: Config.check(): assert self.buckets, 'buckets'"),
        ("checks", f"~ {check}: self.stage > 3 -> self.stage > 4"),
        ('"auto"', f"- {file}: fill(): config.fill_match('train_batch_size', 8)"),
        ('"auto"', f"+ {file}: fill(): if config.stage == 'auto'"),
    ]
    assert releases.differences(before, before) == []


def test_a_package_without_its_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of the files of deepspeed"):
        facts_of(tmp_path, PROGRAM)


def test_wrong_arguments_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert releases.main(["torch==2.15.0"]) == 2
    assert "'torch==2.15.0' is not one of deepspeed==X.Y.Z" in capsys.readouterr().out


def test_a_newer_release_raises_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_differences(program: Program, before: str, after: str) -> str:
        return f"{program.name} {before} -> {after}"

    monkeypatch.setattr(releases, "report", no_differences)
    monkeypatch.setattr(releases, "newest", lambda program: PROGRAMS[program].known)
    assert releases.main([]) == 0
    monkeypatch.setattr(releases, "newest", lambda _: "99.0.0")
    assert releases.main([]) == 1
    assert releases.main(["deepspeed==0.19.7"]) == 0


def test_the_newest_known_deepspeed_is_the_newest_declared() -> None:
    assert PROGRAMS["deepspeed"].known == str(NEWEST)


@pytest.mark.live
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_installed_release_is_known(name: str) -> None:
    try:
        installed = version(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    newer = releases.is_newer(installed, PROGRAMS[name].known)
    assert not newer, f"run `make releases` and follow docs/internals/releases.md for {installed}"

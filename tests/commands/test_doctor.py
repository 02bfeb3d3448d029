"""``dsconfig doctor FILE``: a config and the releases installed here."""

import json
from pathlib import Path

import pytest

from dsconfig.commands import doctor
from dsconfig.commands.errors import UsageError
from dsconfig.runtimes.transformers import Transformers
from dsconfig.schema import installed
from dsconfig.schema.version import Version

STAGE_2 = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 8,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(STAGE_2))
    return str(path)


def told(file: str, monkeypatch: pytest.MonkeyPatch, release: str) -> list[doctor.Finding]:
    monkeypatch.setattr(installed, "installed_or_newest", lambda: Version.parse(release))
    return list(doctor.judged(file))


def test_a_fault_of_the_installed_release_is_told(file: str, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    faulty = told(file, monkeypatch, "0.18.0")
    assert any("DSC830" in each.text for each in faulty if each.state is doctor.State.BAD)
    assert not any("DSC830" in each.text for each in told(file, monkeypatch, "0.19.8"))


def test_another_release_of_transformers_than_the_one_judged_is_told(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(doctor, "version", lambda name: "4.51.3")
    (finding,) = doctor._release_judged(Transformers())
    assert "4.51.3 is installed" in finding.text and "5.23" in finding.text
    monkeypatch.setattr(doctor, "version", lambda name: "5.23.0")
    assert not list(doctor._release_judged(Transformers()))


def test_a_file_that_is_not_there_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="no such file"):
        list(doctor.judged("nowhere.json"))


def test_a_program_that_was_found_out_says_nothing_of_the_script(tmp_path: Path) -> None:
    """As ``validate`` has it: nobody knows whether the script has an optimizer."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 1}}))
    assert not [found for found in doctor.judged(str(path)) if "DSC613" in found.text]

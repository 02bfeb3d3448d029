"""``dsconfig doctor FILE``: check a config for the installed releases."""

import json
from pathlib import Path

import pytest

from dsconfig.commands import doctor
from dsconfig.project.errors import UsageError
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


def checks(file: str, monkeypatch: pytest.MonkeyPatch, release: str) -> list[doctor.Check]:
    monkeypatch.setattr(installed, "installed_or_newest", lambda: Version.parse(release))
    return list(doctor.config_checks(file))


def test_known_fault_of_installed_release_is_reported(file: str, monkeypatch) -> None:
    faulty = checks(file, monkeypatch, "0.18.0")
    assert any("DSC830" in each.text for each in faulty if each.state is doctor.State.BAD)
    assert not any("DSC830" in each.text for each in checks(file, monkeypatch, "0.19.8"))


def test_other_transformers_release_prints_note(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda name: "4.51.3")
    (check,) = doctor._release_check(Transformers())
    assert "4.51.3 is installed" in check.text and "5.23" in check.text
    monkeypatch.setattr(doctor, "version", lambda name: "5.23.0")
    assert not list(doctor._release_check(Transformers()))


def test_missing_file_is_usage_error() -> None:
    with pytest.raises(UsageError, match="file not found"):
        list(doctor.config_checks("nowhere.json"))


def test_inferred_program_reports_nothing_about_the_script(tmp_path: Path) -> None:
    """As in ``validate``: it is unknown whether the script passes an optimizer."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {"stage": 1}}))
    assert not [found for found in doctor.config_checks(str(path)) if "DSC613" in found.text]

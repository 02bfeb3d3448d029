"""Known faults of transformers and accelerate are reported for the affected releases only."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

import dsconfig
from dsconfig.checks.registry import rules
from dsconfig.commands import doctor
from dsconfig.facts.inputs import FactError
from dsconfig.reference.examples import check_example

RANGES = {
    "DSC846": ("transformers", "4.45.2", "4.46.0", "4.46.1", "4.46.2"),
    "DSC847": ("transformers", "4.46.1", "4.46.2", "4.48.3", "4.49.0"),
    "DSC848": ("accelerate", "0.22.0", "0.23.0", "0.25.0", "0.26.0"),
}
"""Program, release before the fault, first, last, and release after."""
FILLED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2},
}


@pytest.mark.parametrize("code", RANGES)
def test_fault_is_reported_in_its_range_only(code: str) -> None:
    program, before, first, last, after = RANGES[code]
    bad = rules()[code].bad
    for release, expected in ((before, False), (first, True), (last, True), (after, False)):
        found = {each.code for each in check_example(bad.with_facts(releases={program: release}))}
        assert (code in found) == expected, release
    assert code not in {each.code for each in check_example(bad.with_facts(releases=None))}


def severities(config: dict, release: str, **facts) -> set[str]:
    known = dsconfig.gather(releases={"transformers": release}, **facts)
    found = dsconfig.validate(config, known, runtime="transformers").diagnostics
    return {each.severity for each in found if each.code == "DSC847"}


@pytest.mark.parametrize("block", ["optimizer", "scheduler"])
def test_schedule_of_config_is_not_affected(block: str) -> None:
    bad = rules()["DSC848"].bad
    own = {"optimizer": {"type": "AdamW"}, "scheduler": {"type": "WarmupLR"}}
    given = bad._replace(config=json.dumps(json.loads(bad.config) | {block: own[block]}))
    assert "DSC848" in {each.code for each in check_example(bad)}
    assert "DSC848" not in {each.code for each in check_example(given)}


def test_fault_of_every_model_is_an_error() -> None:
    config = {**FILLED, "gradient_accumulation_steps": 4}
    assert severities(config, "4.48.0") == {"error"}
    assert severities(config, "4.47.1") == {"info"}


def test_auto_accumulation_steps_come_from_trainer() -> None:
    assert severities(FILLED, "4.48.0", accumulation=4) == {"error"}
    assert severities(FILLED, "4.48.0", accumulation=1) == set()
    assert severities(FILLED, "4.48.0") == {"info"}
    by_default = {"output_dir": "out", "per_device_train_batch_size": 2}
    assert severities(FILLED, "4.48.0", training_args=by_default) == set()


def test_release_candidate_counts_as_its_release() -> None:
    config = {**FILLED, "gradient_accumulation_steps": 4}
    for release in ("4.48.1rc1", "4.48.0.dev0", "4.48.3.post1", "4.48.3+cu128"):
        assert severities(config, release) == {"error"}, release
    for release in ("4.46.1rc1", "4.49.0rc1", "4.49.0.dev0"):
        assert severities(config, release) == set(), release


def test_releases_accept_pip_syntax() -> None:
    for given in (["transformers==4.48.0"], "transformers==4.48.0", {"transformers": "4.48.0"}):
        assert dsconfig.gather(releases=given).releases == {"transformers": "4.48.0"}


@pytest.mark.parametrize(
    "wrong", [["numpy==2.0"], ["transformers"], ["accelerate==new"], {"transformers": None}, [1]]
)
def test_invalid_release_raises_fact_error(wrong: Any) -> None:
    with pytest.raises(FactError, match=r"^releases: .*write \w+==4"):
        dsconfig.gather(releases=wrong)


def test_doctor_uses_installed_releases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(
        '{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4}', "utf-8"
    )

    def version(name: str) -> str:
        if name == "transformers":
            return "4.48.1"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", version)
    assert any("DSC847" in found.text for found in doctor.config_checks(str(path)))


@pytest.mark.parametrize(
    ("norm", "version", "does"),
    [
        (0.5, "0.19.3", "clips at its default of 1.0"),
        (0.5, "0.19.2", "does not clip by default"),
        (1.0, "0.19.2", "does not clip by default"),
        (1.0, "0.19.3", None),
        (0.0, "0.19.2", None),
        (None, "0.19.2", None),
    ],
)
def test_default_clipping_is_that_of_the_release(
    norm: float | None, version: str, does: str | None
) -> None:
    arguments = {} if norm is None else {"max_grad_norm": norm}
    facts = dsconfig.gather(gpus=1, training_args={**arguments, "bf16": True})
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2},
    }
    report = dsconfig.validate(config, facts, runtime="transformers", version=version)
    found = [each.message for each in report.diagnostics if each.code == "DSC755"]
    assert [each.partition("DeepSpeed ")[2] for each in found] == ([does] if does else [])

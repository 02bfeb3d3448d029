"""Logs of public threads: the first failure, its line and rank, and what followed from it."""

import importlib.util
import json
from pathlib import Path

import pytest

import dsconfig
from dsconfig.failures.explanation import CHECKS
from dsconfig.failures.signature import signatures
from failed_runs import Case, cases
from failures import phrases

CASES = cases()
FAILED = [case for case in CASES if case.family != "healthy"]
HEALTHY = [case for case in CASES if case.family == "healthy"]


def diagnosed(case: Case, folder: Path) -> dsconfig.Diagnosis:
    path = folder / "train.log"
    path.write_text(case.text, "utf-8")
    return dsconfig.diagnose(path)


@pytest.mark.parametrize("case", FAILED, ids=str)
def test_first_failure_is_identified(case: Case, tmp_path: Path) -> None:
    diagnosis = diagnosed(case, tmp_path)
    wanted, *places = case.fields["expect"].split()
    first = diagnosis.failures[0]
    assert first.signature == wanted
    for place in places:
        name, _, number = place.partition("=")
        assert getattr(first, name) == int(number)
    if "consequences" in case.fields:
        expected = set(case.fields["consequences"].split())
        assert {each.signature for each in diagnosis.consequences} == expected
    assert case.fields.get("cause", "") in first.cause
    assert case.fields.get("remedy", "") in first.remedy
    assert "{" not in first.cause.replace("{0", "")


@pytest.mark.parametrize("case", HEALTHY, ids=str)
def test_healthy_log_has_no_failure(case: Case, tmp_path: Path) -> None:
    diagnosis = diagnosed(case, tmp_path)
    assert diagnosis.failures == () and diagnosis.consequences == ()


def test_every_log_has_its_thread() -> None:
    assert len(FAILED) >= 60 and len(HEALTHY) >= 20
    assert len({(case.family, case.name) for case in CASES}) == len(CASES)
    for case in FAILED:
        assert case.fields["source"].startswith("https://github.com/"), str(case)


def test_signatures_are_complete() -> None:
    names = [signature.name for signature in signatures()]
    assert len(names) == len(set(names)) >= 60
    for signature in signatures():
        assert signature.phrases and signature.cause and signature.remedy, signature.name
        assert not signature.cause.endswith("."), signature.name
        assert signature.remedy.endswith("."), signature.name
        checked = signature.threads or signature.source.startswith(("package ", "live"))
        assert checked or "dsengine" in signature.releases, signature.name
        for url in signature.urls:
            assert url.removeprefix("https://github.com/").count("/") == 3, url


def test_phrases_of_packages_were_found_in_their_sources() -> None:
    recorded = json.loads(phrases.RECORD.read_text("utf-8"))
    named = {signature.name: file for signature, _, file in phrases.named()}
    assert {name: place["file"] for name, place in recorded.items()} == named


@pytest.mark.parametrize("package", ["deepspeed", "accelerate"])
def test_checks_of_the_installed_release_are_recorded(package: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    rows = (line.split() for line in CHECKS.read_text("utf-8").splitlines())
    newest = {key for _, last, *keys in rows if last.startswith(f"{package}-") for key in keys}
    assert phrases.checks_in(package, Path(spec.origin).parent) <= newest


def test_next_release_ends_and_adds_checks() -> None:
    spans = phrases.with_release({}, {"old", "kept"}, "deepspeed", "0.1.0")
    spans |= {"foreign": ("-", "accelerate-1.0.0")}
    spans = phrases.with_release(spans, {"kept", "new"}, "deepspeed", "0.2.0")
    assert spans == {
        "old": ("-", "0.1.0"),
        "kept": ("-", "deepspeed-0.2.0"),
        "new": ("0.2.0", "deepspeed-0.2.0"),
        "foreign": ("-", "accelerate-1.0.0"),
    }

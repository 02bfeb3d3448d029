"""An integer of 400 digits at each key: DeepSpeed's recorded verdict and ours."""

import json

import pytest

import dsconfig
from dsconfig.report import Effect
from replays import large_integers


def test_verdict_on_large_integers_matches_deepspeed() -> None:
    cases = list(large_integers.replay())
    assert len(cases) > 1400
    assert [case for case in cases if not case.agrees] == []
    assert 0 < sum(case.expected is True for case in cases) < len(cases)


@pytest.mark.live
def test_recorded_refusals_match_real_deepspeed() -> None:
    pytest.importorskip("deepspeed.runtime.config")
    assert large_integers.record() == json.loads(large_integers.ORACLE.read_text())


def test_dsengine_rejects_large_integers_at_any_key() -> None:
    for path in ("train_batch_size", "steps_per_print", "unknown"):
        config = {"train_batch_size": 8, path: 10**400}
        report = dsconfig.validate(config, runtime="dsengine")
        [found] = [found for found in report.refusals if found.code == "DSC013"]
        assert "dsengine rejects the config" in found.message


def test_other_mistakes_beside_a_large_integer_are_reported() -> None:
    config = {"train_batch_size": 8, "steps_per_print": 10**400, "fp16": {"enabled": "maybe"}}
    found = dsconfig.validate(config, runtime="deepspeed").diagnostics
    effects = {finding.code: finding.effect for finding in found}
    assert effects["DSC031"] is Effect.REFUSED and effects["DSC013"] is Effect.NOTE

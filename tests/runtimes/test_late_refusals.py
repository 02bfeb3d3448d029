"""Errors of DeepSpeed after parsing: during initialization or in a step."""

from typing import Any

import pytest

import dsconfig
from dsconfig.facts import gather
from dsconfig.runtimes.deepspeed import deepspeed
from runtimes.late_refusals import CASES, Stop, config_of
from training.ranks import Ranks


@pytest.mark.parametrize(("case", "stop"), CASES, ids=lambda value: str(value)[:70])
def test_replay_stops_at_late_refusal(case: dict[str, Any], stop: Stop) -> None:
    resolution = dsconfig.resolve(config_of(case), gather(gpus=1), runtime=deepspeed())
    failure = resolution.failure
    if stop is None:
        assert failure is None
    else:
        assert failure is not None and failure.exception == stop[0]
        assert [path.pointer for path in failure.paths] == [stop[1]]
        assert any(f"raises {stop[0]}" in found.message for found in resolution.refusals)


@pytest.mark.parametrize(("case", "stop"), CASES, ids=lambda value: str(value)[:70])
def test_parsing_alone_does_not_stop(case: dict[str, Any], stop: Stop) -> None:
    runtime = deepspeed(until="parse")
    resolution = dsconfig.resolve(config_of(case), gather(gpus=1), runtime=runtime)
    assert resolution.failure is None


@pytest.mark.live
def test_real_deepspeed_stops_at_the_same_cases() -> None:
    with Ranks(1) as one:
        configs = [config_of(case) for case, _ in CASES]
        [raised] = one.run("runtimes.late_refusals:by_deepspeed", configs=configs)
    expected = [stop and stop[0] for _, stop in CASES]
    pairs = zip(CASES, expected, raised, strict=True)
    assert [(case, here, there) for case, here, there in pairs if here != there] == []

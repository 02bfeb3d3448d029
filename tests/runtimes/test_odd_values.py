"""One unusual value for each key: DeepSpeed's recorded verdict and ours."""

import json

import pytest

from replays import odd_values


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, odd_values.PARTS))]
)
def test_replay_predicts_refusals_of_unusual_values(part: int) -> None:
    cases = list(odd_values.replay(parts=[part]))
    assert len(cases) > 4_500
    assert [case for case in cases if not case.agrees] == []


@pytest.mark.live
def test_recorded_refusals_match_real_deepspeed() -> None:
    pytest.importorskip("deepspeed.runtime.config")
    recorded, live = json.loads(odd_values.ORACLE.read_text()), odd_values.record()
    differing = {
        key
        for key in recorded["keys"] | live["keys"]
        if recorded["rows"][recorded["keys"][key]] != live["rows"][live["keys"][key]]
    }
    assert differing == set()

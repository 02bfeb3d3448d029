"""One odd value at each key: DeepSpeed's verdict, recorded, and ours."""

import json

import pytest

from replays import odd_values


def test_every_refusal_of_an_odd_value_is_foreseen() -> None:
    cases = list(odd_values.replay())
    assert len(cases) > 18_000
    assert [case for case in cases if not case.agrees] == []


@pytest.mark.live
def test_the_record_is_what_deepspeed_says() -> None:
    pytest.importorskip("deepspeed.runtime.config")
    recorded, live = json.loads(odd_values.ORACLE.read_text()), odd_values.record()
    differing = {
        key
        for key in recorded["keys"] | live["keys"]
        if recorded["rows"][recorded["keys"][key]] != live["rows"][live["keys"][key]]
    }
    assert differing == set()

"""Replays of how other programs handle "auto", compared with recorded behavior."""

from pathlib import Path

import replay

ORACLE = Path(__file__).parents[1] / "oracle" / "auto.jsonl"


def test_replay_agrees_with_99_percent_of_recorded_cases():
    wrong, total = replay.run("auto", ORACLE)
    assert total > 500
    assert len(wrong) <= total // 100, wrong[:3]

"""What the other programs do with "auto", replayed against what they were seen to do."""

from pathlib import Path

import replay

ORACLE = Path(__file__).parents[1] / "oracle" / "auto.jsonl"


def test_at_least_99_of_100_recorded_cases_agree():
    wrong, total = replay.run("auto", ORACLE)
    assert total > 500
    assert len(wrong) <= total // 100, wrong[:3]

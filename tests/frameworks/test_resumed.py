"""The Trainer resumes runs whose ranks divide layers, sequences or experts."""

from pathlib import Path

import pytest

from frameworks.running import result_of
from training import expert_jobs, sequence_jobs

pytestmark = [pytest.mark.live, pytest.mark.engine]


@pytest.mark.parametrize(
    ("axis", "stage"), [("tensor", 1), ("sequence", 3), ("expert", 1), ("expert", 3)]
)
def test_resumed_run_equals_one_process(tmp_path: Path, axis: str, stage: int) -> None:
    got = result_of("dsengine", "resumed", tmp_path, axis, str(tmp_path), str(stage), ranks=2)
    if axis == "expert":
        expected = expert_jobs.one_process("Mixtral", 2, 6, 1, "SGD", 0.5)
    else:
        expected = sequence_jobs.one_process("causal", 1, "SGD", 0.5, steps=6, replicas=1)
    for run in (got["whole"], got["resumed"]):
        assert run["losses"] == pytest.approx([loss for loss, _ in expected], rel=1e-5)
        assert run["norms"] == pytest.approx([norm for _, norm in expected], rel=1e-5)

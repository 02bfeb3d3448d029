"""The Trainer and accelerate with ``autotp_size`` 2 give the losses and norms of one process."""

from pathlib import Path

import pytest

from frameworks.running import result_of
from training import sequence_jobs

pytestmark = [pytest.mark.live, pytest.mark.engine]


@pytest.mark.parametrize(
    ("program", "stage", "accumulation", "kind"),
    [
        ("trainer", 1, 1, "causal"),
        ("trainer", 3, 2, "qwen 3"),
        ("accelerate", 2, 2, "gemma 3"),
        ("tp_size", 3, 2, "causal"),
    ],
)
def test_losses_and_norms_of_one_process(
    tmp_path: Path, program: str, stage: int, accumulation: int, kind: str
) -> None:
    arguments = (program, str(tmp_path), str(stage), str(accumulation), kind)
    got = result_of("dsengine", "tensor", tmp_path, *arguments, ranks=2)
    expected = sequence_jobs.one_process(kind, accumulation, "SGD", clip=0.5, steps=6, replicas=1)
    assert got["losses"] == pytest.approx([loss for loss, _ in expected], rel=1e-5)
    assert got["norms"] == pytest.approx([norm for _, norm in expected], rel=1e-5)

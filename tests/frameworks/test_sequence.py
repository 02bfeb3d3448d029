"""The Trainer and accelerate with ``sp_size`` 2 give the losses and norms of one process."""

from pathlib import Path

import pytest

from frameworks.running import result_of
from training import sequence_jobs

pytestmark = [pytest.mark.live, pytest.mark.engine]
DEGREES = {
    "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
    "PARALLELISM_CONFIG_SP_SIZE": "2",
    "PARALLELISM_CONFIG_SP_BACKEND": "deepspeed",
    "PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE": "true",
}


@pytest.mark.parametrize(
    ("program", "world_size", "stage", "accumulation", "kind"),
    [
        ("trainer", 2, 1, 1, "causal"),
        ("trainer", 2, 3, 2, "packed"),
        ("trainer", 2, 2, 1, "no labels on a rank"),
        ("trainer", 4, 2, 2, "causal"),
        ("trainer", 4, 3, 2, "no labels on a rank"),
        ("accelerate", 2, 3, 2, "causal"),
        ("accelerate", 4, 1, 2, "window"),
        ("environment", 2, 2, 1, "causal"),
    ],
)
def test_losses_and_norms_of_one_process(
    tmp_path: Path,
    program: str,
    world_size: int,
    stage: int,
    accumulation: int,
    kind: str,
) -> None:
    given = DEGREES if program == "environment" else None
    arguments = (program, str(tmp_path), str(stage), str(accumulation), kind)
    got = result_of(
        "dsengine", "sequence", tmp_path, *arguments, ranks=world_size, environment=given
    )
    expected = sequence_jobs.one_process(
        kind, accumulation, "SGD", clip=0.5, steps=6, replicas=world_size // 2
    )
    assert got["losses"] == pytest.approx([loss for loss, _ in expected], rel=1e-5)
    assert got["norms"] == pytest.approx([norm for _, norm in expected], rel=1e-5)

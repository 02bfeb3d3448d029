"""``engine.join`` with uneven numbers of batches per rank."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sweeps import sweep
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
STAGES = (0, 1, 2, 3)
PLAIN = {"optimizer": {"type": "SGD", "params": {"lr": 0.05}}, "gradient_clipping": 0}


def close(ones: list[Tensor], others: list[Tensor]) -> bool:
    return all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(ones, others, strict=True)
    )


@sweep(1, stage=STAGES, accumulation=[1, 2])
def test_join_trains_on_every_batch_once(ranks: Ranks, stage: int, accumulation: int) -> None:
    settings, counts = config(stage, accumulation, **PLAIN), [6, 3]
    answers: list[Any] = ranks.run("training.join_jobs:trained", config=settings, counts=counts)
    assert [new for new, _ in answers] == [[True] * 6, [True] * 3 + [False] * 3]
    job = "training.join_jobs:reference"
    _, expected = ranks.run(job, config=settings, counts=counts, accumulation=accumulation)[0]
    assert close(answers[0][1], expected)


@pytest.mark.parametrize("stage", STAGES)
def test_join_weights_direct_backward(ranks: Ranks, stage: int) -> None:
    job, counts = "training.join_jobs:trained", [1, 4]
    ours = ranks.run(job, config=config(stage), counts=counts)[0][1]
    assert close(ranks.run(job, config=config(stage), counts=counts, direct=True)[0][1], ours)


@pytest.mark.parametrize("stage", [0, 3])
def test_join_until_first_stops_all_ranks(ranks: Ranks, stage: int) -> None:
    job, counts = "training.join_jobs:trained", [5, 2]
    answers = ranks.run(job, config=config(stage), counts=counts, until="first")
    assert [new for new, _ in answers] == [[True] * 2] * 2
    even = ranks.run(job, config=config(stage), counts=[2, 2])[0][1]
    assert close(answers[0][1], even)


def test_invalid_join_is_refused_on_all_ranks(ranks: Ranks) -> None:
    for nothing_here, unknown in ranks.run("training.join_jobs:refused", config=config(2)):
        assert "1 of 2 ranks have no batch:" in nothing_here
        assert '"last" or "first"' in unknown

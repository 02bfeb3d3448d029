"""The collectives used with NCCL, run over gloo, train like the direct exchange.

Streams and GPUs are not covered; dtypes, order and factors are the same.
"""

from typing import Any

import pytest

from sweeps import sweep
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine

BF16: dict[str, Any] = {"bf16": {"enabled": True}}
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 8}}
ON_HOST = {"device": "cpu"}
SETTINGS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": BF16,
    "fp16": FP16,
    "reduced in fp32": BF16 | {"communication_data_type": "fp32"},
    "summed in fp32": BF16 | {"data_types": {"grad_accum_dtype": "fp32"}},
    "divided before": {"gradient_predivide_factor": 4.0},
    "divided before, in bf16": {"communication_data_type": "bf16", "prescale_gradients": True},
}
NARROWED = ("summed in fp32", "divided before, in bf16")
OFFLOADED: list[dict[str, Any]] = [
    {"stage": 1, "offload_optimizer": ON_HOST},
    {"stage": 2, "offload_optimizer": ON_HOST},
    {"stage": 3, "offload_optimizer": {**ON_HOST, "ratio": 0.5}, "sub_group_size": 2000},
    {"stage": 3, "offload_param": ON_HOST},
    {"stage": 3, "offload_param": ON_HOST, "offload_optimizer": ON_HOST},
    {"stage": 3, "stage3_param_persistence_threshold": 100, "offload_param": ON_HOST},
]


def agree(ranks: Ranks, settings: dict[str, Any], tolerance: float = 1e-6) -> None:
    exchanged, collected = ranks.run("training.collective_jobs:both_ways", config=settings)[0]
    assert collected == pytest.approx(exchanged, rel=tolerance)
    assert collected[-1] < collected[0]


@sweep(1, stage=[1, 2, 3], name=[*SETTINGS])
def test_collectives_equal_direct_exchange(ranks: Ranks, stage: int, name: str) -> None:
    # Collectives sum in the 16-bit communication dtype; the direct exchange sums in fp32.
    tolerance = 1e-3 if name in NARROWED else 1e-6
    agree(ranks, config(stage, 2, **SETTINGS[name]), tolerance)


@pytest.mark.parametrize("zero", [{}, {"offload_optimizer": ON_HOST}], ids=str)
@pytest.mark.parametrize("stage", [1, 2])
def test_a_step_gathers_all_parameters_in_one_launch(
    ranks: Ranks, stage: int, zero: dict[str, Any]
) -> None:
    """Packed small ones included; ``comms_logger`` counts each gather, as without coalescing."""
    settings = config(stage, zero=zero, **BF16)
    job = "training.collective_jobs:counted_gathers"
    (one, together), (many, separate) = (
        ranks.run(job, config=settings, coalesce=coalesce, packed_below=2000)[0]
        for coalesce in (True, False)
    )
    assert one == 1 < many
    assert together == separate


def test_evaluation_with_offloaded_parameters_waits_for_its_gathers(ranks: Ranks) -> None:
    """The copies of pinned shards to the GPU must end before anything writes the shards."""
    job = "training.collective_jobs:waits_with_offload"
    settings = config(3, zero={"offload_param": ON_HOST})
    assert ranks.run(job, config=settings)[0] == (0, 1)
    assert ranks.run(job, config=config(3))[0] == (0, 0)


@pytest.mark.parametrize("zero", OFFLOADED, ids=str)
@pytest.mark.parametrize("precision", [{}, BF16], ids=["fp32", "bf16"])
def test_collectives_equal_direct_exchange_with_offload(
    ranks: Ranks, zero: dict[str, Any], precision: dict[str, Any]
) -> None:
    agree(ranks, config(zero["stage"], 2, zero=zero, **precision))

"""Parameters without a gradient are updated with zeros, as in DeepSpeed."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from dsengine.sharding.order import ReductionOrder
from sweeps import sweep
from training.direct_step_jobs import ADAMW, SGD
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine
needs_zeros = pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"),
    reason="torch reduces missing gradients since 2.13",
)
JOB = "training.direct_step_jobs:weights_with_unused"
PLAIN = "training.direct_step_jobs:plain_weights_with_unused"
BF16: dict[str, Any] = {"bf16": {"enabled": True}}
HOST: dict[str, Any] = {"zero": {"offload_optimizer": {"device": "cpu"}}}
PLAIN_STEP: dict[str, Any] = {"gradient_clipping": 0.0}
OPTIMIZERS = pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["SGD", "AdamW"])


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    return {
        name: max((a - b).abs().max().item() for a, b in zip(found[name], steps, strict=True))
        for name, steps in expected.items()
    }


@sweep(1, stage=[0, 1, 2, 3], used=["in turn", "late"])
@OPTIMIZERS
def test_unused_parameters_follow_zero_gradients(
    ranks: Ranks, stage: int, optimizer: dict[str, Any], used: str
) -> None:
    expected = ranks.once(PLAIN, optimizer=optimizer, used=used)[0]
    for found in ranks.run(JOB, config=config(stage, **PLAIN_STEP, optimizer=optimizer), used=used):
        assert max(_differences(found, expected).values()) < 2e-6
    assert not torch.equal(expected["never.weight"][0], expected["never.weight"][-1])


@sweep(1, stage=[0, 1, 2, 3], used=["in turn", "late"])
@OPTIMIZERS
def test_unused_parameters_follow_zero_gradients_in_bf16(
    ranks: Ranks, stage: int, optimizer: dict[str, Any], used: str
) -> None:
    """At stage 0 the fp32 masters are not readable, only the rounded weights."""
    expected = ranks.once(PLAIN, optimizer=optimizer, used=used)[0]
    for found in ranks.run(
        JOB, config=config(stage, **PLAIN_STEP, optimizer=optimizer, **BF16), used=used
    ):
        differences = _differences(found, expected)
        assert differences["never.weight"] < (2e-3 if stage == 0 else 2e-6)
        assert differences["branch.weight"] < 4e-3


@OPTIMIZERS
@pytest.mark.parametrize("stage", [2, 3])
def test_unused_parameters_of_an_offloaded_optimizer_follow_zero_gradients(
    ranks: Ranks, stage: int, optimizer: dict[str, Any]
) -> None:
    expected = ranks.once(PLAIN, optimizer=optimizer, used="in turn")[0]
    settings = config(stage, 2, **PLAIN_STEP, optimizer=optimizer, **HOST)
    for found in ranks.run(JOB, config=settings, used="in turn"):
        assert max(_differences(found, expected).values()) < 2e-6


@needs_zeros
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_ranks_use_a_branch_of_a_leaf_differently(ranks: Ranks, stage: int) -> None:
    """Units of equal size would be taken for each other."""
    leaf = {"leaf_module": {"classes": ["Partly"]}}
    expected = ranks.once(PLAIN, optimizer=SGD, used="on one rank")[0]
    settings = config(stage, **PLAIN_STEP, optimizer=SGD, zero=leaf)
    for found in ranks.run(JOB, config=settings, used="on one rank"):
        assert max(_differences(found, expected).values()) < 2e-6


@needs_zeros
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_of_different_units_are_not_summed(ranks: Ranks, stage: int) -> None:
    job = "training.direct_step_jobs:different_experts"
    for message, changed in ranks.run(job, config=config(stage, optimizer=SGD)):
        assert "set_z3_leaf_modules" in message and message.startswith("step 1: ")
        assert not changed
    marked = config(stage, optimizer=SGD, zero={"leaf_module": {"classes": ["Experts"]}})
    assert ranks.run(job, config=marked) == [("", True)] * 2


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_steps_that_use_every_parameter_add_no_zeros(ranks: Ranks, stage: int) -> None:
    assert ranks.run("training.direct_step_jobs:states_after_all_used", stage=stage) == [[], []]


@pytest.mark.parametrize("size", range(1, 33))
def test_order_of_units_of_any_size_changes_the_number(size: int) -> None:
    def number(units: list[int]) -> int:
        shards = [nn.Parameter(torch.zeros(1)) for _ in range(66 * size)]
        order = ReductionOrder(shards)
        for unit in units:
            for shard in shards[unit * size : (unit + 1) * size]:
                shard.sum().backward()
        return order.number

    orders = [[0], [1], [64], [0, 1], [1, 0], [0, 64], [64, 0], [0, 64, 1], [1, 64, 0]]
    assert len({number(units) for units in orders}) == len(orders)

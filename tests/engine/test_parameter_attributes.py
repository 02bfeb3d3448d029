"""What DeepSpeed attaches to the parameters of stage 3."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from dsconfig.features.deepspeed_names import PARAMETERS
from dsengine.sharding.zero import parameter_attributes, status
from training.jobs import config
from training.ranks import Ranks


@pytest.mark.engine
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("threshold", [0, 10**6], ids=["sharded", "persistent"])
def test_shards_make_up_the_parameters(ranks: Ranks, threshold: int, precision: str) -> None:
    """Lightning's model summary calls partition_numel() on every parameter."""
    zero = {"stage3_param_persistence_threshold": threshold}
    settings = config(3, zero=zero, bf16={"enabled": precision == "bf16"})
    for rank, result in enumerate(ranks.run("training.parameter_jobs:attached", settings=settings)):
        assert result["complete"] == [True, True] and result["built"] and result["copies"]
        assert result["facts"] == {(True, True, "PARTITIONED", (rank, 2), 0)}
        assert result["summary"]["ds_numel"] == math.prod(result["summary"]["ds_shape"])
        assert "does not implement deepspeed.Parameter.partition_gradients" in result["refused"]


@pytest.mark.engine
@pytest.mark.parametrize("threshold", [0, 10**6], ids=["sharded", "persistent"])
def test_all_gather_and_partition_in_pairs(ranks: Ranks, threshold: int) -> None:
    settings = config(3, zero={"stage3_param_persistence_threshold": threshold})
    for found in ranks.run("training.parameter_jobs:gathered_by_hand", settings=settings):
        assert found == [{"shapes": True, "discarded": True, "kept": True}] * 2


def test_other_parameters_have_none() -> None:
    parameter_attributes.install_parameter_attributes()
    parameter: Any = nn.Parameter(torch.zeros(2))
    names = {*parameter_attributes.VALUES, *parameter_attributes.METHODS}
    assert not any(hasattr(parameter, name) for name in names)
    with pytest.raises(AttributeError, match="'Parameter' object has no attribute 'ds_tensor'"):
        _ = parameter.ds_tensor
    parameter.ds_tensor = 3  # DeepSpeed itself assigns it
    assert parameter.ds_tensor == 3


@pytest.mark.engine
@pytest.mark.live
def test_everything_that_deepspeed_attaches_is_provided_or_explained(deepspeed: Ranks) -> None:
    names = deepspeed.run("training.parameter_jobs:names_of_real_parameters", settings=config(3))[0]
    ours = {
        *status.NAMES,
        *parameter_attributes.VALUES,
        *parameter_attributes.METHODS,
        *PARAMETERS,
    }
    assert "partition_numel" in names and names - ours == set()

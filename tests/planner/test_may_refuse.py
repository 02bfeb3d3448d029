"""``may_refuse`` detects every config the engine could refuse, without resolving."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dsconfig
from dsconfig.features.table import Status
from dsconfig.planner.coverage.cover import coverage, may_refuse

OPTIMIZERS = st.fixed_dictionaries(
    {"type": st.sampled_from(["AdamW", "Adam", "Lion", "SGD", "Muon", "OneBitAdam", "Lamb"])},
    optional={
        "params": st.dictionaries(
            st.sampled_from(["lr", "betas", "eps", "momentum", "max_coeff", "bias_correction"]),
            st.sampled_from([0.5, [0.9, 0.99], True, False]),
            max_size=3,
        )
    },
)
BLOCKS = st.fixed_dictionaries(
    {"train_micro_batch_size_per_gpu": st.just(1)},
    optional={
        "optimizer": OPTIMIZERS,
        "zero_optimization": st.fixed_dictionaries(
            {"stage": st.integers(0, 3)},
            optional={
                "overlap_comm": st.booleans(),
                "round_robin_gradients": st.booleans(),
                "zero_quantized_weights": st.booleans(),
            },
        ),
        "sparse_attention": st.fixed_dictionaries({"mode": st.just("fixed")}),
        "compile": st.fixed_dictionaries({"deepcompile": st.booleans()}),
        "tensor_parallel": st.fixed_dictionaries({"autotp_size": st.integers(0, 2)}),
    },
)


@given(BLOCKS)
def test_may_refuse_covers_refusals(config: dict[str, Any]) -> None:
    effective = dsconfig.resolve(config, dsconfig.gather(gpus=2)).effective
    if effective is not None and not may_refuse(config):
        assert [row for row in coverage(effective) if row.status is Status.REFUSED] == []


@pytest.mark.parametrize(
    ("config", "answer"),
    [
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}, False),
        ({"optimizer": {"type": "AdamW", "params": {"max_coeff": 1}}}, True),
        ({"optimizer": {"type": "OneBitAdam"}}, True),
        ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, False),
    ],
)
def test_plain_config_is_not_resolved(config: dict[str, Any], answer: bool) -> None:
    assert may_refuse(config) is answer

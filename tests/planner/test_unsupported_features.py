"""validate reports the features of dsengine that plan refuses."""

import pytest

import dsconfig

BASE = {"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
ZENFLOW = {"topk_ratio": 0.1, "select_interval": 4, "select_strategy": "step", "update_interval": 4}
OFFLOADED = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
MISSING = [
    {"compile": {"deepcompile": True, "passes": ["autosp"]}, "zero_optimization": {"stage": 3}},
    {"zero_optimization": {**OFFLOADED, "zenflow": ZENFLOW}},
]


@pytest.mark.parametrize("extra", [{}, {"zero_optimization": {"stage": 3}}, *MISSING])
def test_validate_and_plan_refuse_the_same(extra: dict) -> None:
    config = {**BASE, **extra}
    facts = dsconfig.gather(gpus=2)
    resolution = dsconfig.resolve(config, facts)
    reported = dsconfig.validate(config, facts, runtime="dsengine").refusals
    assert bool(reported) == (extra in MISSING) and resolution.refusals == reported
    for error in reported:
        with pytest.raises(ValueError, match=error.code):
            dsconfig.plan(resolution, facts)
    others = dsconfig.validate(config, facts, runtime="deepspeed").diagnostics
    assert "DSC762" not in {finding.code for finding in others}

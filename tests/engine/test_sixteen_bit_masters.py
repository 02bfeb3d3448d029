"""Optimizers that update 16-bit weights, with 16-bit or fp32 states."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dsengine.tiers import OffloadedBinding
from engine_storage.offloading import offload_settings
from training.jobs import config
from training.ranks import Ranks

pytestmark = pytest.mark.engine

ON_HOST = {"offload_optimizer": {"device": "cpu"}}
BF16 = torch.bfloat16


def narrow(stage: int, *, states: bool = True, zero: dict[str, Any] | None = None) -> Any:
    masters = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": states}
    return config(stage, 2, zero=zero or {}, bf16={"enabled": True, **masters})


@pytest.mark.parametrize(
    "stage", [*(pytest.param(stage, marks=pytest.mark.long) for stage in (1, 2)), 3]
)
def test_losses_are_close_to_those_with_fp32_masters(ranks: Ranks, stage: int) -> None:
    wide = ranks.run("training.jobs:losses", config=config(stage, 2, bf16={"enabled": True}))[0]
    for settings in (narrow(stage), narrow(stage, states=False, zero=ON_HOST)):
        losses = ranks.run("training.jobs:losses", config=settings)[0]
        assert losses != wide
        assert losses == pytest.approx(wide, rel=0.02)


@pytest.mark.live
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_losses_equal_deepspeed(ours: Ranks, deepspeed: Ranks, stage: int) -> None:
    job = "training.live_jobs:deepspeed_losses"
    theirs = deepspeed.run(job, config=narrow(stage), steps=8)[0]
    mine = ours.run("training.jobs:losses", config=narrow(stage), steps=8)[0]
    assert mine == pytest.approx(theirs, rel=1e-2)


@pytest.mark.parametrize(
    ("stage", "states", "zero"), [(1, True, {}), (3, True, {}), (2, False, ON_HOST)]
)
def test_run_resumes_exactly(
    ranks: Ranks, tmp_path: Path, stage: int, states: bool, zero: dict[str, Any]
) -> None:
    settings = narrow(stage, states=states, zero=zero)
    uninterrupted, resumed, *_ = ranks.run(
        "training.jobs:resumed", config=settings, folder=str(tmp_path)
    )[0]
    assert resumed == uninterrupted


@pytest.mark.parametrize(("before", "after"), [("bf16", "fp32"), ("fp32", "bf16")])
def test_checkpoint_loads_with_masters_of_another_dtype(
    ranks: Ranks, tmp_path: Path, before: str, after: str
) -> None:
    kinds = {"bf16": narrow(2), "fp32": config(3, 2, bf16={"enabled": True})}
    expected, losses, dtypes = ranks.run(
        "training.master_jobs:resumed_as",
        config=kinds[before],
        other=kinds[after],
        folder=str(tmp_path),
    )[0]
    assert losses == pytest.approx(expected, rel=0.02)
    assert dtypes == {"bf16": ["torch.bfloat16"], "fp32": ["torch.float32"]}[after]


@pytest.mark.parametrize("states", [torch.float32, BF16])
def test_update_is_computed_in_fp32_and_rounded_once(states: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(1000, generator=generator).to(BF16)
    parameters = {"w": nn.Parameter(weights.clone())}
    settings = offload_settings(master=BF16, states=states, rounding=BF16)
    optimizer = torch.optim.AdamW([parameters["w"]], lr=0.1, fused=True)
    binding = OffloadedBinding(optimizer, parameters, settings, {})
    expected, state = weights.clone(), {}
    for _ in range(3):
        gradient = torch.randn(1000, generator=generator).to(BF16)
        parameters["w"].grad = gradient.clone()
        binding.offloaded_gradients._receive("w")
        list(binding.gradients(iter(binding.offloaded_gradients.items())))
        binding.step()
        binding.offloaded_gradients.clear()
        exact = nn.Parameter(expected.float())
        exact.grad = gradient.float()
        reference = torch.optim.AdamW([exact], lr=0.1, fused=True)
        if state:
            reference.state[exact] = {
                name: value.float() if name != "step" else value for name, value in state.items()
            }
        reference.step()
        state = {
            name: value.to(states) if name != "step" else value
            for name, value in reference.state[exact].items()
        }
        expected = exact.detach().to(BF16)
        assert torch.equal(parameters["w"].detach(), expected)
    binding.close()


@pytest.mark.parametrize(
    ("wide", "dtypes"), [(None, ["torch.float32"]), (False, ["torch.bfloat16"])]
)
def test_offloaded_states_are_fp32_unless_configured(
    ranks: Ranks, wide: bool | None, dtypes: list[str]
) -> None:
    settings = narrow(2, states=False, zero=ON_HOST)
    if wide is not None:
        optimizer = settings["optimizer"]
        params = optimizer["params"] | {"fp32_optimizer_states": wide}
        settings["optimizer"] = optimizer | {"params": params}
    assert ranks.run("training.key_jobs:probe", settings=settings)[0]["states"] == dtypes

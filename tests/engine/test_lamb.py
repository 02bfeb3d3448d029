"""Lamb steps as the formula of DeepSpeed's kernel, with norms of full parameters."""

import math
from typing import Any

import pytest
import torch

from dsengine.optimizers import build_optimizer
from training import tensor_jobs
from training.jobs import config
from training.ranks import Ranks, SharedRanks

DEFAULTS: dict[str, Any] = {
    "lr": 1e-3,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "eps_inside_sqrt": False,
    "weight_decay": 0.0,
    "max_coeff": 10.0,
    "min_coeff": 0.01,
    "bias_correction": True,
}


def kernel(weights: list[float], gradients: list[list[float]], params: Any) -> list[float]:
    """Compute the kernel's steps with Python floats, one element after the other."""
    (b1, b2), eps = params["betas"], params["eps"]
    p = list(weights)
    m, v = [0.0] * len(p), [0.0] * len(p)
    for step, g in enumerate(gradients, 1):
        update = [0.0] * len(p)
        for j in range(len(p)):
            m[j] = b1 * m[j] + (1 - b1) * g[j]
            v[j] = b2 * v[j] + (1 - b2) * g[j] * g[j]
            inside = params["eps_inside_sqrt"]
            denominator = math.sqrt(v[j] + eps) if inside else math.sqrt(v[j]) + eps
            update[j] = m[j] / denominator + params["weight_decay"] * p[j]
        weight_norm, update_norm = math.hypot(*p), math.hypot(*update)
        coefficient = 1.0
        if weight_norm != 0 and update_norm != 0:
            ratio = weight_norm / update_norm
            coefficient = min(max(ratio, params["min_coeff"]), params["max_coeff"])
        size = params["lr"]
        if params["bias_correction"]:
            size *= math.sqrt(1 - b2**step) / (1 - b1**step)
        p = [each - size * coefficient * change for each, change in zip(p, update, strict=True)]
    return p


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 0.1, "weight_decay": 0.3, "betas": [0.5, 0.75]},
        {"lr": 0.1, "bias_correction": False},
        {"lr": 0.1, "eps": 0.5, "eps_inside_sqrt": True},
        {"lr": 0.1, "eps": 0.5},
        {"lr": 0.1, "max_coeff": 0.2},
        {"lr": 0.1, "min_coeff": 4.0, "max_coeff": 4.5},
    ],
)
@pytest.mark.parametrize("start", [[1.0, -2.0, 0.5, 0.0], [0.0] * 4], ids=["weights", "zeros"])
def test_steps_are_those_of_the_kernel(options: dict[str, Any], start: list[float]) -> None:
    gradients = [[0.5, -1.0, 0.0, 2.0], [-0.25, 0.75, 0.0, 1.0], [0.0] * 4]
    weight = torch.nn.Parameter(torch.tensor(start))
    optimizer = build_optimizer("Lamb", options, [{"params": [weight]}])
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    expected = kernel(start, gradients, DEFAULTS | options)
    assert weight.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    "options", [{"amsgrad": True}, {"betas": [0.9, 1.0]}, {"min_coeff": 2.0, "max_coeff": 1.0}]
)
def test_invalid_arguments_are_refused(options: dict[str, Any]) -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))]}]
    with pytest.raises(ValueError, match="Lamb"):
        build_optimizer("Lamb", options, groups)


@pytest.mark.engine
@pytest.mark.parametrize(
    "stage", [*(pytest.param(stage, marks=pytest.mark.long) for stage in (0, 1, 2)), 3]
)
def test_split_layers_and_shards_have_norms_of_full_parameters(
    ranks_of: SharedRanks, stage: int
) -> None:
    expected = tensor_jobs.one_process("rules", 2, 4, optimizer="Lamb")
    job = "training.tensor_jobs:divided"
    for curve in ranks_of(4).run(job, kind="rules", stage=stage, steps=4, optimizer="Lamb"):
        assert curve == [pytest.approx(step, rel=1e-4) for step in expected]


@pytest.mark.engine
def test_optimizer_offload_is_refused(ranks: Ranks) -> None:
    zero = {"offload_optimizer": {"device": "cpu"}}
    settings = config(2, zero=zero) | {"optimizer": {"type": "Lamb", "params": {"lr": 1e-3}}}
    with pytest.raises(RuntimeError, match="Adafactor, Lamb and Muon do not support"):
        ranks.run("training.jobs:losses", config=settings, steps=1)


@pytest.mark.engine
def test_states_resume(ranks: Ranks, tmp_path: Any) -> None:
    settings = config(3) | {"optimizer": {"type": "Lamb", "params": {"lr": 1e-2}}}
    job = "training.jobs:resumed"
    expected, resumed, *_ = ranks.run(job, config=settings, folder=str(tmp_path))[0]
    assert resumed == pytest.approx(expected, rel=1e-6)

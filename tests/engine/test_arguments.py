"""Every argument of an optimizer or schedule that the engine honours changes what it does."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from dsconfig import Status
from dsconfig.planner.coverage import rule_of
from dsconfig.planner.coverage.page import live_paths
from dsengine.optimizers import build_optimizer, is_muon, split_for_muon
from dsengine.optimizers.schedules import build_schedule, check_metrics
from training.key_tables import (
    ALONE,
    IMPLEMENTATIONS,
    OPTIMIZER_ARGUMENTS,
    SCHEDULES,
    WITH,
)

OPTIMIZER_CASES = [
    (kind, name, value) for kind, cases in OPTIMIZER_ARGUMENTS.items() for name, value in cases
]
SCHEDULE_CASES = [
    (kind, name, value) for kind, (_, cases) in SCHEDULES.items() for name, value in cases
] + [("OneCycleLR", "epochs", 9), ("OneCycleLR", "steps_per_epoch", 9)]


def honoured(prefix: str) -> set[str]:
    """Names of the arguments that the coverage table calls honoured."""
    return {
        path.removeprefix(prefix)
        for path in live_paths()
        if path.startswith(prefix)
        and any(case.status is Status.HONOURED for case in rule_of(path) or ())
    }


def test_every_honoured_argument_has_a_case() -> None:
    assert {name for _, name, _ in OPTIMIZER_CASES} == honoured("optimizer.params.")
    assert {name for _, name, _ in SCHEDULE_CASES} == honoured("scheduler.params.")


def optimizer_with(kind: str, params: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))]
    groups: Any = [{"params": parameters}]
    if is_muon(kind):
        groups = split_for_muon(groups, params, {})
    return build_optimizer(kind, params, groups)


def trained(kind: str, params: dict[str, Any]) -> list[torch.Tensor]:
    """Weights and states after some steps."""
    optimizer = optimizer_with(kind, params)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for size in (5.0, 1.0, 3.0, 0.2):
        for each in parameters:
            each.grad = size * (each.detach().sin() + 0.1)
        optimizer.step()
    states = [v for state in optimizer.state.values() for v in state.values()]
    return [*(each.detach() for each in parameters), *(s for s in states if s is not None)]


@pytest.mark.parametrize(("kind", "name", "value"), OPTIMIZER_CASES)
def test_an_optimizers_argument_shows(kind: str, name: str, value: Any) -> None:
    beside = {"lr": 0.02} | WITH.get((kind, name), {})
    if name in IMPLEMENTATIONS:
        optimizer = optimizer_with(kind, {**beside, name: value})
        assert all(group[name] == value for group in optimizer.param_groups)
        return
    with_it, without = trained(kind, {**beside, name: value}), trained(kind, beside)
    assert [each.tolist() for each in with_it] != [each.tolist() for each in without]


def rates(kind: str, params: dict[str, Any], lr: Any = 0.3) -> list[Any]:
    """Rates and momenta over 20 steps, as the optimizer has them."""
    settings: dict[str, Any] = {"lr": lr, "betas": (0.9, 0.999)}
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(2))], foreach=False, **settings)
    if params.get("last_epoch", -1) >= 0:
        optimizer.param_groups[0]["initial_lr"] = 0.3
    schedule = build_schedule(kind, copy.copy(params), optimizer)
    seen = []
    losses = [3.0, 2.0, 2.0, 1.99, 1.98, 1.97, 1.97, 2.5, 2.5, 2.5, *[2.6] * 10]
    for step in range(20):
        optimizer.step()
        watched = {"metrics": losses[step]} if kind == "ReduceLROnPlateau" else {}
        check_metrics(schedule, watched)
        schedule.step(**watched)
        group = optimizer.param_groups[0]
        seen.append((round(float(group["lr"]), 12), round(group["betas"][0], 12)))
    return seen


@pytest.mark.parametrize(("kind", "name", "value"), SCHEDULE_CASES)
def test_a_schedules_argument_shows(kind: str, name: str, value: Any) -> None:
    beside = SCHEDULES[kind][0] | ALONE.get((kind, name), {})
    assert rates(kind, {**beside, name: value}) != rates(kind, beside)


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle"])
def test_a_rate_may_be_a_tensor(kind: str) -> None:
    """It stays the same tensor, and a schedule goes by what it was at first."""
    params = SCHEDULES[kind][0] | ({"warmup_max_lr": None} if kind == "WarmupLR" else {})
    tensor = torch.tensor(0.3, dtype=torch.float64)
    assert rates(kind, params, tensor) == rates(kind, params)
    assert float(tensor) == pytest.approx(rates(kind, params)[-1][0])


def test_a_schedule_that_watches_a_loss_says_what_it_needs() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    schedule = build_schedule("ReduceLROnPlateau", {}, optimizer)
    with pytest.raises(ValueError, match="lr_kwargs"):
        check_metrics(schedule, {})


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "adamw", "FusedAdam"])
def test_weights_decay_only_when_told_to(kind: str) -> None:
    """DeepSpeed's kernel has 0.0 where torch's AdamW has 0.01."""
    assert [group["weight_decay"] for group in optimizer_with(kind, {}).param_groups] == [0.0]


def test_with_torch_adam_adamw_decays_as_torch_has_it() -> None:
    assert optimizer_with("AdamW", {"torch_adam": True}).param_groups[0]["weight_decay"] == 0.01

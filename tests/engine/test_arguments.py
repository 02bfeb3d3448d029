"""Every honoured argument of an optimizer or schedule has an effect."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from dsconfig import Status
from dsconfig.planner.capabilities import live_paths
from dsconfig.planner.coverage.cover import rule_of
from dsengine.optimizers import build_optimizer, is_muon, split_for_muon
from dsengine.optimizers.schedules import build_schedule, check_metrics
from training.key_tables import (
    IMPLEMENTATIONS,
    OPTIMIZER_ARGUMENTS,
    REQUIRES,
    REQUIRES_SCHEDULE,
    SCHEDULES,
)

OPTIMIZER_CASES = [
    (kind, name, value) for kind, cases in OPTIMIZER_ARGUMENTS.items() for name, value in cases
]
SCHEDULE_CASES = [
    (kind, name, value) for kind, (_, cases) in SCHEDULES.items() for name, value in cases
] + [("OneCycleLR", "epochs", 9), ("OneCycleLR", "steps_per_epoch", 9)]


def honoured(prefix: str) -> set[str]:
    """Return the arguments that the coverage table lists as honoured."""
    return {
        path.removeprefix(prefix)
        for path in live_paths()
        if path.startswith(prefix)
        and any(case.status is Status.HONOURED for case in rule_of(path) or ())
    }


def test_every_honoured_argument_is_covered() -> None:
    of_offloading = {"fp32_optimizer_states"}  # test_sixteen_bit_masters.py
    arguments = honoured("optimizer.params.") - of_offloading
    assert {name for _, name, _ in OPTIMIZER_CASES} == arguments
    assert {name for _, name, _ in SCHEDULE_CASES} == honoured("scheduler.params.")


def optimizer_with(kind: str, params: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))]
    groups: Any = [{"params": parameters}]
    if is_muon(kind):
        groups = split_for_muon(groups, params, {})
    return build_optimizer(kind, params, groups)


def trained(kind: str, params: dict[str, Any]) -> list[torch.Tensor]:
    """Return weights and states after some steps."""
    optimizer = optimizer_with(kind, params)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for size in (5.0, 1.0, 3.0, 0.2):
        for parameter in parameters:
            parameter.grad = size * (parameter.detach().sin() + 0.1)
        optimizer.step()
    states = [v for state in optimizer.state.values() for v in state.values()]
    return [*(p.detach() for p in parameters), *(s for s in states if s is not None)]


@pytest.mark.parametrize(("kind", "name", "value"), OPTIMIZER_CASES)
def test_optimizer_argument_has_an_effect(kind: str, name: str, value: Any) -> None:
    base = {"lr": 0.02} | REQUIRES.get((kind, name), {})
    if name in IMPLEMENTATIONS:
        optimizer = optimizer_with(kind, {**base, name: value})
        assert all(group[name] == value for group in optimizer.param_groups)
        return
    with_it, without = trained(kind, {**base, name: value}), trained(kind, base)
    assert [t.tolist() for t in with_it] != [t.tolist() for t in without]


def rates(kind: str, params: dict[str, Any], lr: Any = 0.3) -> list[Any]:
    """Return learning rates and momenta over 20 steps."""
    settings: dict[str, Any] = {"lr": lr, "betas": (0.9, 0.999)}
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(2))], foreach=False, **settings)
    if params.get("last_epoch", -1) >= 0:
        optimizer.param_groups[0]["initial_lr"] = 0.3
    schedule = build_schedule(kind, copy.copy(params), optimizer)
    seen = []
    losses = [3.0, 2.0, 2.0, 1.99, 1.98, 1.97, 1.97, 2.5, 2.5, 2.5, *[2.6] * 10]
    for step in range(20):
        optimizer.step()
        metrics = {"metrics": losses[step]} if kind == "ReduceLROnPlateau" else {}
        check_metrics(schedule, metrics)
        schedule.step(**metrics)
        group = optimizer.param_groups[0]
        seen.append((round(float(group["lr"]), 12), round(group["betas"][0], 12)))
    return seen


@pytest.mark.parametrize(("kind", "name", "value"), SCHEDULE_CASES)
def test_schedule_argument_has_an_effect(kind: str, name: str, value: Any) -> None:
    base = SCHEDULES[kind][0] | REQUIRES_SCHEDULE.get((kind, name), {})
    assert rates(kind, {**base, name: value}) != rates(kind, base)


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle"])
def test_learning_rate_can_be_a_tensor(kind: str) -> None:
    """The tensor stays the same object, and the schedule uses its initial value."""
    params = SCHEDULES[kind][0] | ({"warmup_max_lr": None} if kind == "WarmupLR" else {})
    tensor = torch.tensor(0.3, dtype=torch.float64)
    assert rates(kind, params, tensor) == rates(kind, params)
    assert float(tensor) == pytest.approx(rates(kind, params)[-1][0])


def test_plateau_schedule_without_metrics_names_lr_kwargs() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    schedule = build_schedule("ReduceLROnPlateau", {}, optimizer)
    with pytest.raises(ValueError, match="lr_kwargs"):
        check_metrics(schedule, {})


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "adamw", "FusedAdam"])
def test_weight_decay_defaults_to_zero(kind: str) -> None:
    """DeepSpeed's kernel defaults to 0.0, torch's AdamW to 0.01."""
    assert [group["weight_decay"] for group in optimizer_with(kind, {}).param_groups] == [0.0]


def test_torch_adam_uses_torch_weight_decay_default() -> None:
    assert optimizer_with("AdamW", {"torch_adam": True}).param_groups[0]["weight_decay"] == 0.01

"""Replay DeepSpeed's learning-rate schedules: rates, momenta, errors, resuming."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dsengine.optimizers.schedules import build_schedule
from replays import Case

TOLERANCE = 1e-12


def replay(path: Path) -> Iterator[Case]:
    recorded = json.loads(path.read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, case in enumerate(recorded["cases"]):
            yield _case(f"{number} {case['type']} {case['params']}", recorded, case)
        for case in recorded["resume"]:
            yield _resumed(f"resume {case['type']}", recorded, case)


def optimizer(recorded: dict[str, Any], groups: int = 1) -> torch.optim.Optimizer:
    parameters = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)]
    return torch.optim.AdamW(
        parameters, lr=recorded["optimizer_lr"], betas=tuple(recorded["optimizer_betas"])
    )


def _case(name: str, recorded: dict[str, Any], case: dict[str, Any]) -> Case:
    target = optimizer(recorded, case["groups"])
    try:
        schedule = build_schedule(case["type"], case["params"], target)
    except (TypeError, ValueError) as error:
        expected = case.get("error", "no error").partition(":")[0]
        return Case(name, expected, type(error).__name__, expected == type(error).__name__)
    if "error" in case:
        return Case(name, case["error"], "no error", False)
    try:
        first_rates = schedule.get_last_lr()
    except AssertionError:
        first_rates = None
    rates, betas = [_rates(target)], [_betas(target)]
    for _ in case["lr"][1:]:
        schedule.step()
        rates.append(_rates(target))
        betas.append(_betas(target))
    agrees = (
        _close(case["lr"], rates)
        and _momenta_agree(case["beta1"], betas)
        and case["state_dict"] == schedule.state_dict()
        and (case["get_last_lr_after_init"] or None) == (first_rates or None)
    )
    return Case(name, case["lr"], rates, agrees)


def _resumed(name: str, recorded: dict[str, Any], case: dict[str, Any]) -> Case:
    expected = {key: value for key, value in case.items() if key.startswith("lr_")}
    target = optimizer(recorded)
    schedule = build_schedule(case["type"], case["params"], target)
    got = {}
    for _ in range(15):
        schedule.step()
    got["lr_at_15"], state = target.param_groups[0]["lr"], schedule.state_dict()
    schedule.step()
    got["lr_at_16_original"] = target.param_groups[0]["lr"]
    target = optimizer(recorded)
    schedule = build_schedule(case["type"], case["params"], target)
    got["lr_fresh_init"] = target.param_groups[0]["lr"]
    schedule.load_state_dict(state)
    got["lr_right_after_load_state_dict"] = target.param_groups[0]["lr"]
    schedule.step()
    got["lr_at_16_resumed"] = target.param_groups[0]["lr"]
    agrees = expected.keys() == got.keys() and all(
        abs(expected[key] - got[key]) <= TOLERANCE for key in expected
    )
    return Case(name, expected, got, agrees)


def _rates(target: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in target.param_groups]


def _betas(target: torch.optim.Optimizer) -> list[float]:
    return [group["betas"][0] for group in target.param_groups]


def _momenta_agree(expected: list[list[float]] | str, got: list[list[float]]) -> bool:
    if isinstance(expected, str):
        constant = json.loads(expected.removeprefix("constant "))
        return all(_close([constant], [rates]) for rates in got)
    return _close(expected, got)


def _close(expected: list[list[float]], got: list[list[float]]) -> bool:
    return len(expected) == len(got) and all(
        abs(a - b) <= TOLERANCE
        for theirs, mine in zip(expected, got, strict=True)
        for a, b in zip(theirs, mine, strict=True)
    )

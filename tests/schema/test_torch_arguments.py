"""Declared optimizer and scheduler arguments match the installed torch."""

import inspect
from typing import Any

import pytest

from dsconfig.schema import Key, find
from dsconfig.schema.catalogue import blocks_of
from dsconfig.schema.optimizers import OPTIMIZERS
from dsconfig.schema.optimizers import OWN as OWN_OPTIMIZERS
from dsconfig.schema.schedules import OWN as OWN_SCHEDULES
from dsconfig.schema.schedules import SCHEDULES

torch = pytest.importorskip("torch")

TORCH_OPTIMIZERS = sorted(OPTIMIZERS.keys() - set(OWN_OPTIMIZERS))
TORCH_SCHEDULES = sorted(SCHEDULES.keys() - set(OWN_SCHEDULES))
REFUSED_BY_THE_ENGINE = {"max_grad_norm"}
"""Declared for every optimizer, so that the fault has a name."""


def arguments(called: Any, *given: str) -> dict[str, Any]:
    """Names and defaults of what a config can set; ``...`` where there is no default."""
    parameters = inspect.signature(called.__init__).parameters
    return {
        name: ... if one.default is inspect.Parameter.empty else one.default
        for name, one in parameters.items()
        if name not in ("self", "params", "optimizer", *given)
    }


def declared(block: str, type_: str) -> dict[str, Any]:
    params = find([block, "params"])
    assert params is not None
    (owner,) = blocks_of(params.shape, type_)
    keys = [find([block, "params", name], of_type=type_) for name in owner.model_fields]
    return {
        key.name: ... if key.required else key.default
        for key in keys
        if isinstance(key, Key) and key.name not in REFUSED_BY_THE_ENGINE
    }


def plain(defaults: dict[str, Any]) -> dict[str, Any]:
    return {n: list(value) if isinstance(value, tuple) else value for n, value in defaults.items()}


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_optimizer(name: str) -> None:
    assert declared("optimizer", name) == plain(arguments(getattr(torch.optim, name)))


@pytest.mark.parametrize("name", TORCH_SCHEDULES)
def test_schedule(name: str) -> None:
    schedules = torch.optim.lr_scheduler
    assert declared("scheduler", name) == plain(arguments(getattr(schedules, name)))


def test_all_torch_optimizers_are_declared() -> None:
    classes = {
        name
        for name in torch.optim.__all__
        if inspect.isclass(getattr(torch.optim, name)) and name != "Optimizer"
    }
    assert classes - set(TORCH_OPTIMIZERS) <= set(OWN_OPTIMIZERS)


def test_all_torch_schedules_are_declared() -> None:
    schedules = set(torch.optim.lr_scheduler.__all__) - {"LRScheduler"}
    assert schedules == set(TORCH_SCHEDULES)

"""What ranks are asked to do with a plan that was made elsewhere."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import dsengine
from training import models
from training.jobs import window


def by(config: dict[str, Any] | None = None, plan: str | None = None) -> dict[str, Any]:
    """Train by a config or by the plan in a file: the curve, the weights, the plan's digest."""
    given = {"config": config} if plan is None else {"plan": plan}
    return _trained(**given)


def by_the_launcher(plan: str) -> dict[str, Any]:
    """Train by what the launcher names; the script says nothing."""
    with _set("DSCONFIG_PLAN", plan):
        return _trained()


def by_its_own_config(config: dict[str, Any], plan: str) -> dict[str, Any]:
    """A script that passes a config is not overruled by the launcher."""
    with _set("DSCONFIG_PLAN", plan):
        return _trained(config=config)


def _trained(**given: Any) -> dict[str, Any]:
    torch.manual_seed(7)
    engine, *_ = dsengine.initialize(model=models.tied(), **given)
    curve = [window(engine, step).hex() for step in range(4)]
    weights = {
        name: value.detach().cpu().double().sum().item().hex()
        for name, value in engine.module_state_dict().items()
    }
    digest, clipping = engine.plan.digest, engine.plan.effective.gradients.clipping
    engine.destroy()
    return {"curve": curve, "weights": weights, "digest": digest, "clipping": clipping}


@contextmanager
def _set(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]

"""Jobs with a plan made elsewhere."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import dsengine
from training import models
from training.jobs import window


def from_config_or_plan(
    config: dict[str, Any] | None = None, plan: str | None = None
) -> dict[str, Any]:
    """Train from a config or a plan file; return losses, weights and the plan's digest."""
    options = {"config": config} if plan is None else {"plan": plan}
    return _trained(**options)


def from_launcher(plan: str) -> dict[str, Any]:
    """Train from the launcher's plan, without arguments in the script."""
    with _set("DSCONFIG_PLAN", plan):
        return _trained()


def from_own_config(config: dict[str, Any], plan: str) -> dict[str, Any]:
    """Train from the script's own config, which overrides the launcher's plan."""
    with _set("DSCONFIG_PLAN", plan):
        return _trained(config=config)


def _trained(**options: Any) -> dict[str, Any]:
    torch.manual_seed(7)
    engine, *_ = dsengine.initialize(model=models.tied(), **options)
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

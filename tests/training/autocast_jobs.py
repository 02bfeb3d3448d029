"""Jobs with torch.autocast in fp16."""

from typing import Any

import torch
import torch.distributed as dist

import dsengine
from training import models
from training.jobs import config

FP16: dict[str, Any] = {"torch_autocast": {"enabled": True, "dtype": "float16"}}
SMALL = 2.0**-22
"""Of a loss whose gradients have no representation in fp16."""


def norms_of_small_losses(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the gradient norm at each stage, divided by the factor of the loss.

    At stage 0 ``direct`` is that of a scaled loss of the script, and ``refusal`` the error of a
    backward without the scale; ``overflow`` has the scale before and after one, and whether the
    weights changed.
    """
    norms: dict[str, Any] = {}
    for stage in range(4):
        engine, *_ = dsengine.initialize(
            model=models.tied(), config=config(stage, gradient_clipping=1e9, **settings)
        )
        batch = models.batch(0, 0, dist.get_rank())
        engine.backward(engine(batch) * SMALL)
        engine.step()
        norms[str(stage)] = (engine.get_global_grad_norm() or 0.0) / SMALL
        if stage == 0 and settings:
            norms |= _directly(engine, batch)
        engine.destroy()
    return norms


def _directly(engine: Any, batch: torch.Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {}
    before, scale = [p.detach().clone() for p in engine.module.parameters()], engine.loss_scale
    engine.scale(engine(batch) * float("inf")).backward()
    engine.optimizer.step()
    unchanged = map(torch.equal, before, engine.module.parameters())
    found["overflow"] = (scale, engine.loss_scale, all(unchanged))
    engine.scale(engine(batch) * SMALL).backward()
    engine.optimizer.step()
    found["direct"] = engine.get_global_grad_norm() / SMALL
    try:
        engine(batch).backward()
    except RuntimeError as error:
        found["refusal"] = str(error)
    return found

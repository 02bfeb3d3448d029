"""Checkpoints that move between master weights of different dtypes. Runs on every rank."""

from typing import Any

import dsengine
from training import models
from training.jobs import window


def resumed_as(config: dict[str, Any], other: dict[str, Any], folder: str) -> list[Any]:
    """Return the losses after a save, those with ``other`` after a load, and its dtypes."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=config)
    for step in range(4):
        window(engine, step)
    engine.save_checkpoint(folder)
    expected = [window(engine, 4 + step) for step in range(4)]
    engine.destroy()
    engine: Any = dsengine.initialize(model=models.tied(seed=1), config=other)[0]
    engine.load_checkpoint(folder)
    losses = [window(engine, 4 + step) for step in range(4)]
    kinds = {
        str(tensor.dtype)
        for master in engine.sharding.masters.values()
        if master.requires_grad
        for tensor in (master, *engine.optimizer.state.get(master, {}).values())
        if getattr(tensor, "ndim", 0)
    }
    engine.destroy()
    return [expected, losses, sorted(kinds)]

"""Engines whose two ranks divide layers, experts or sequences. Runs on every rank."""

from typing import Any

from torch import Tensor

import dsengine
from training import expert_jobs, jobs, sequence_jobs, tensor_jobs

AXES = ("tensor", "packed", "expert", "sequence")
"""``packed``: split layers with several matrices in a weight."""


def started(axis: str, stage: int, **more: Any) -> Any:
    """Return an engine; ``more``: further keys of its config."""
    mpu = None
    match axis:
        case "expert":
            config, model = expert_jobs.config_of("own", stage, 2), expert_jobs.model_of("own")
        case "sequence":
            config = sequence_jobs.settings(stage, 1, "AdamW", clip=0.5)
            model, mpu = sequence_jobs.divided_model("own", 2)
        case _:
            kind = "rules" if axis == "tensor" else "fused"
            config, model = tensor_jobs.config_of(kind, stage, 2), tensor_jobs.model_of(kind)
    return dsengine.initialize(model=model, config=config | more, mpu=mpu)[0]


def window(engine: Any, number: int) -> Tensor:
    """Train a step with a numbered batch; return the loss of this rank."""
    loss = tensor_jobs.micro_batch_loss(engine, "own", number, engine.topology.size("sequence"))
    engine.backward(loss)
    engine.step()
    return loss.detach()


def growth(axis: str, stage: int) -> tuple[int, int]:
    """Return how many Python objects and bytes of tensors windows leave behind."""
    return jobs.grown(started(axis, stage), window)


def inputs(engine: Any) -> dict[str, Tensor]:
    """Return the arguments of a forward: this rank's part of its sample."""
    batch = sequence_jobs.sample_batch("own", engine.topology.rank("samples"))
    del batch["labels"]
    return dict(sequence_jobs.parts(batch, engine.topology.size("sequence")))

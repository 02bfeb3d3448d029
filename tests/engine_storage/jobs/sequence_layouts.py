"""Jobs that save and load checkpoints with samples divided along the sequence."""

import hashlib
from typing import Any

from torch import Tensor

import dsengine
from dsengine.checkpoints.group import CheckpointError
from dsengine.deepspeed.tensor_fragment import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
)
from training import sequence_jobs

STATES = ("exp_avg", "exp_avg_sq")


def continued(
    stage: int, ranks: int, *, load: str = "", save: str = "", kind: str = "causal"
) -> dict[str, Any]:
    """Load, train two steps and save; return the digests of weights and moments around this.

    ``ranks``: the ranks that share a sample.
    """
    config = sequence_jobs.settings(stage, 1, "AdamW", clip=0.5)
    model, mpu = sequence_jobs.divided_model(kind, ranks)
    engine, *_ = dsengine.initialize(model=model, config=config, mpu=mpu)
    try:
        if load:
            engine.load_checkpoint(load)
        result: dict[str, Any] = {"before": digests(engine)} if load else {}
        for step in range(2):
            loss = sequence_jobs.micro_batch_loss(engine, kind, step, ranks)
            engine.backward(loss)
            engine.step()
        if save:
            engine.save_checkpoint(save)
        return result | {"after": digests(engine)}
    finally:
        engine.destroy()


def refused(directory: str, kind: str) -> tuple[str, bool]:
    """Load the checkpoint of another model; return the error, and whether nothing changed."""
    model, mpu = sequence_jobs.divided_model(kind, 2)
    config = sequence_jobs.settings(3, 1, "AdamW", clip=0.5)
    engine, *_ = dsengine.initialize(model=model, config=config, mpu=mpu)
    before = digests(engine)
    try:
        engine.load_checkpoint(directory)
    except CheckpointError as error:
        return str(error), before == digests(engine)
    finally:
        engine.destroy()
    return "", False


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def digests(engine: Any) -> dict[str, list[str]]:
    """Return by parameter the digests of its fp32 value and of its moments, once there are any."""
    return {
        name: [
            digest(value)
            for value in (
                safe_get_full_fp32_param(parameter),
                *(safe_get_full_optimizer_state(parameter, key) for key in STATES),
            )
            if value is not None
        ]
        for name, parameter in engine.module.named_parameters()
    }

"""The same runs with the installed DeepSpeed."""

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist

from dsengine.communication.gloo_exit import wait_for_gloo_at_exit
from training import models


def real_deepspeed() -> Any:
    """Return the installed package on CPU, without its shared-memory kernel.

    The kernel takes a minute to compile and only serves reductions of a few megabytes within one
    machine. A process killed while compiling it leaves a lock that blocks later ones.
    """
    wait_for_gloo_at_exit()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    warnings.simplefilter("ignore")
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def deepspeed_losses(config: dict[str, Any], steps: int) -> list[float]:
    """Return DeepSpeed's mean losses; its optimizer restrictions are disabled."""
    deepspeed = real_deepspeed()
    optimizer = dict(config["optimizer"])
    optimizer["params"] = optimizer["params"] | {"torch_adam": True}
    settings = config | {"optimizer": optimizer, "zero_allow_untested_optimizer": True}
    model = models.tied()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=settings
    )
    return [_window(engine, step) for step in range(steps)]


def _window(engine: Any, step: int) -> float:
    total = torch.zeros((), dtype=torch.float64)
    for micro in range(engine.gradient_accumulation_steps()):
        loss = engine(models.batch(step, micro, dist.get_rank()))
        engine.backward(loss)
        engine.step()
        total += loss.detach().double()
    dist.all_reduce(total)
    return (total / engine.gradient_accumulation_steps() / dist.get_world_size()).item()


def resumed_by_deepspeed(
    config: dict[str, Any], folder: str, begin: int, steps: int
) -> dict[str, Any]:
    """Return the results of DeepSpeed resuming from a checkpoint in its own format."""
    deepspeed = real_deepspeed()
    model = models.tied(seed=5)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config=config | {"zero_allow_untested_optimizer": True},
    )
    _, client = engine.load_checkpoint(folder)
    counted = (engine.global_steps, engine.global_samples)
    scale = getattr(engine.optimizer, "cur_scale", None) or getattr(engine, "loss_scale", None)
    return {
        "losses": [_window(engine, begin + step) for step in range(steps)],
        "rate": engine.get_lr()[0],
        "client": client,
        "counted": counted,
        "scale": scale if isinstance(scale, float | int) else None,
    }


def full_weights(folder: str) -> dict[str, torch.Tensor]:
    """Return the weights that DeepSpeed's own script reads from a checkpoint."""
    real_deepspeed()
    from deepspeed.utils import zero_to_fp32

    return dict(zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder))

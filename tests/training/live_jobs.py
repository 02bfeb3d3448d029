"""The same run by the real DeepSpeed, for tests that have it installed."""

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist

from dsengine.communication.gloo_exit import wait_for_gloo_at_exit
from training import models


def real_deepspeed() -> Any:
    """The installed package, on the CPU, without the kernel it would compile for a minute first.

    Only reductions of a few megabytes within one machine go through that kernel. A process that
    is killed while it compiles leaves a lock, for which every later one would wait.
    """
    wait_for_gloo_at_exit()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    warnings.simplefilter("ignore")
    import deepspeed  # type: ignore[import-untyped]

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def deepspeed_losses(config: dict[str, Any], steps: int) -> list[float]:
    """The mean losses DeepSpeed reaches; its own rules for optimizers are switched off."""
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


def gone_on(config: dict[str, Any], folder: str, begin: int, steps: int) -> dict[str, Any]:
    """What DeepSpeed's engine does with a checkpoint that it has found in its own files."""
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


def whole_weights(folder: str) -> dict[str, torch.Tensor]:
    """What DeepSpeed's own script makes of a checkpoint."""
    real_deepspeed()
    from deepspeed.utils import zero_to_fp32  # type: ignore[import-untyped]

    return dict(zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder))

"""Tensor parallelism with the installed DeepSpeed's AutoTP. Runs on every rank."""

import torch.distributed as dist

from training import tensor_jobs
from training.live_jobs import real_deepspeed
from training.sequence_jobs import Curve, sample_batch, token_losses


def deepspeed_curve(kind: str, stage: int, steps: int, optimizer: str) -> Curve:
    """Return what ``tensor_jobs.divided`` returns for two ranks."""
    deepspeed = real_deepspeed()
    deepspeed.init_distributed("gloo")
    config = tensor_jobs.config_of(kind, stage, dist.get_world_size(), optimizer=optimizer)
    config["optimizer"]["params"] |= {"torch_adam": True} if optimizer == "AdamW" else {}
    config |= {"zero_allow_untested_optimizer": True}
    model = tensor_jobs.model_of(kind)
    engine, *_ = deepspeed.initialize(model=model, config=config)
    curve: Curve = []
    for step in range(steps):
        losses, count = token_losses(engine, sample_batch(kind, step))
        loss = losses / count
        engine.backward(loss)
        engine.step()
        curve.append((loss.item(), float(engine.get_global_grad_norm())))
    return curve

"""Sequence parallelism with the installed DeepSpeed. Runs on every rank."""

import importlib
from typing import Any

import torch
import torch.distributed as dist

from training import sequence_jobs
from training.live_jobs import real_deepspeed
from training.sequence_jobs import MICRO_BATCH, Curve

RANKS = 2


def deepspeed_curve(
    stage: int, accumulation: int, optimizer: str, clip: float, steps: int
) -> Curve:
    """Return what ``sequence_jobs.divided`` returns, for causal attention."""
    deepspeed = real_deepspeed()
    deepspeed.init_distributed("gloo")
    ulysses: Any = importlib.import_module("deepspeed.runtime.sequence_parallel.ulysses_sp")
    model = sequence_jobs.model_of("causal", divided=True)
    mpu = ulysses.UlyssesSPAttentionHF.register_with_transformers(
        model,
        core_attn_implementation="sdpa",
        sequence_parallel_size=RANKS,
        micro_batch_size=MICRO_BATCH,
    )
    config = sequence_jobs.settings(stage, accumulation, optimizer, clip)
    config["optimizer"]["params"] |= {"torch_adam": True} if optimizer == "AdamW" else {}
    config |= {"sequence_parallel_size": RANKS, "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(model=model, config=config, mpu=mpu)
    group = mpu.get_sequence_parallel_group()
    curve: Curve = []
    for step in range(steps):
        total = torch.zeros(())
        for micro in range(accumulation):
            batch = sequence_jobs.sample_batch("causal", step * accumulation + micro)
            losses, count = sequence_jobs.token_losses(
                engine, dict(sequence_jobs.parts(batch, RANKS))
            )
            counts = torch.tensor(float(count))
            dist.all_reduce(counts, group=group)
            loss = losses * RANKS / counts
            engine.backward(loss)
            engine.step()
            total += loss.detach() / accumulation
        dist.all_reduce(total)
        curve.append((total.item() / RANKS, float(engine.get_global_grad_norm())))
    return curve

"""Compare a dry run's peak of each phase with the peak measured on the GPU."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import dsconfig
import dsengine
from benchmarks.engine_modes import Workload
from dsengine.observation.memory import LiveBytes
from gpu.cases import Row, rows
from gpu.setting import Setting
from training.ranks import Ranks, SharedRanks

PHASES = ("init", "forward", "backward", "step")
TIERS: dict[str, dict[str, Any]] = {"": {}, ", offloaded": {"offload_optimizer": {"device": "cpu"}}}


def dry_run(setting: Setting, seconds: float) -> list[Row]:
    """Return by phase the measured bytes and those of the dry run."""
    shared = SharedRanks(setting.device)

    def compare(settings: dict[str, Any]) -> Row:
        ranks: Ranks = shared(setting.gpus)
        real = ranks.run("gpu.dry_run:peaks", config=settings, workload=setting.workload)[0]
        output = simulated(settings, setting)
        return {phase: [real[phase], output[phase]] for phase in PHASES}

    try:
        return rows(_cases(setting, compare), seconds)
    finally:
        shared.close()


def _cases(setting: Setting, compare: Callable[[dict[str, Any]], Row]) -> dict[str, Any]:
    return {
        f"stage {stage}, {precision}{tier}": partial(compare, _config(stage, precision, zero))
        for precision in setting.precisions
        for stage in setting.stages
        for tier, zero in TIERS.items()
        if stage > 0 or not zero
    }


def _config(stage: int, precision: str, zero: dict[str, Any]) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": stage, **zero},
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
    }


def simulated(settings: dict[str, Any], setting: Setting) -> dict[str, int]:
    """Return peak bytes by phase on the same device, including offloaded states."""
    work = Workload(**setting.workload | {"micro_batch": 1, "device": "cpu"})
    facts = dsconfig.Facts(
        world_size=setting.gpus,
        nodes=1,
        device=dsconfig.DeviceFacts(name=setting.gpu, kind=setting.device),
        model=dsengine.describe(work.model()),
        training=dsconfig.TrainingFacts(arguments={"zero_init": False}),
    )
    plan = dsconfig.plan(dsconfig.resolve(settings, facts), facts)
    batch = torch.zeros(1, work.context + 1, dtype=torch.long)
    answer = dsengine.simulate(
        plan, work.model, loss=lambda engine: engine(batch), device=setting.device
    )
    return answer["phases"]


def peaks(config: dict[str, Any], workload: dict[str, Any]) -> dict[str, int]:
    """Return the second step's peak bytes above the initial ones; runs on every rank."""
    work = Workload(**{**workload, "micro_batch": 1})
    batch = work.batch(seed=dist.get_rank())
    # On the host the model is in the same memory and is counted; on a GPU it is moved there.
    meter = LiveBytes(torch.device(work.device), existing=work.device == "cpu")
    model = work.model()
    gc.collect()
    meter.start("init")
    engine, *_ = dsengine.initialize(model=model, config=config)
    for step in range(2):
        meter.enter("forward" if step else "before")
        loss = engine(batch)
        meter.enter("backward" if step else "before")
        engine.backward(loss)
        del loss
        meter.enter("step" if step else "before")
        engine.step()
    meter.stop()
    engine.destroy()
    return {phase: meter.peaks[phase] for phase in PHASES}

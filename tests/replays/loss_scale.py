"""Replay DeepSpeed's loss-scale trajectories: every scale, and where it gave up."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dsconfig
from dsengine.optimizers.loss_scale import LossScaleExhaustedError
from dsengine.optimizers.precision import loss_scaler
from replays import Case

STAGE_OF_IMPLEMENTATION = {"dynamic": 1, "fused": 0, "unfused": 0}


def replay(path: Path) -> Iterator[Case]:
    recorded = json.loads(path.read_text())
    for number, case in enumerate(recorded["cases"]):
        name = f"{number} {case['impl']} {case['pattern']} {case['fp16']}"
        expected = {
            key: case[key] for key in ("scale_used", "final_scale", "error_at_step") if key in case
        }
        got = trajectory(case, recorded["patterns"][case["pattern"]])
        yield Case(name, expected, got, expected == got)


def trajectory(case: dict[str, Any], overflows: list[int]) -> dict[str, Any]:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": {"enabled": True, **case["fp16"]},
        "zero_optimization": {"stage": STAGE_OF_IMPLEMENTATION[case["impl"]]},
    }
    resolution = dsconfig.resolve(config, dsconfig.Facts(world_size=1))
    assert resolution.effective is not None, resolution.diagnostics
    scaler = loss_scaler(resolution.effective)
    used: list[float] = []
    for step, overflow in enumerate(overflows):
        used.append(scaler.scale)
        try:
            scaler.update(bool(overflow))
        except LossScaleExhaustedError:
            return {"scale_used": used, "final_scale": scaler.scale, "error_at_step": step}
    return {"scale_used": used, "final_scale": scaler.scale}

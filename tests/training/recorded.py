"""Repeat a recorded DeepSpeed run with dsengine."""

import gc
import importlib.util
import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

import dsengine


@cache
def models(folder: str) -> ModuleType:
    """Return the models and batches of the recorded runs: ``models.py`` next to the results."""
    spec = importlib.util.spec_from_file_location("recorded_models", Path(folder) / "models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def replay(path: str) -> dict[str, Any]:
    """Train as the record at ``path``. ``refused`` is the error message, if any."""
    record = json.loads(Path(path).read_text())
    source = models(str(Path(path).parents[1]))
    model = source.build(record["model"])
    try:
        engine, *_ = dsengine.initialize(model=model, config=record["config"])
    except ValueError as refusal:
        return {"refused": str(refusal)}
    mode = record.get("mode")
    per_window = _step_calls_per_window(record, engine.gradient_accumulation_steps())
    steps = []
    for step in range(len(record.get("steps", [])) or 2):
        steps.append(_window(engine, source, record["model"], step, mode, per_window))
    engine.destroy()
    gc.collect()
    return {"refused": None, "steps": steps}


def _step_calls_per_window(record: dict[str, Any], accumulation: int) -> int:
    """Return the step() calls per window in the recorded loop: one per micro batch, or one."""
    steps = record.get("steps")
    return steps[0]["micro_steps"] if steps else accumulation


def _window(
    engine: Any, source: ModuleType, name: str, step: int, mode: str | None, calls: int
) -> dict[str, Any]:
    accumulation = engine.gradient_accumulation_steps()
    scale, rates = engine.loss_scale, engine.get_lr()
    losses, returned = [], []
    for micro in range(accumulation):
        last = micro == accumulation - 1
        if calls < accumulation:
            engine.set_gradient_accumulation_boundary(last)
        loss = engine(*source.batch(name, step, micro, dist.get_rank()))
        options = {"scale_wrt_gas": False} if mode == "no_gas_scale" else {}
        if mode == "no_sync" and not last:
            with engine.no_sync():
                returned.append(engine.backward(loss, **options).item())
        else:
            returned.append(engine.backward(loss, **options).item())
        if calls >= accumulation or last:
            engine.step()
        losses.append(loss.item())
    return {
        "loss": losses,
        "backward_return": returned,
        "mean_loss": _mean(sum(losses) / accumulation),
        "grad_norm": engine.get_global_grad_norm(),
        "loss_scale_used": scale,
        "lr_used": rates,
        "skipped_total": engine.skipped_steps,
        "was_step_applied": engine.was_step_applied(),
        "global_steps": engine.global_steps,
        "micro_steps": engine.micro_steps,
    }


def _mean(value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()

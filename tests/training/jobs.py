"""Jobs of the engine's tests. Each function runs on every rank."""

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import dsengine
from dsengine.observation.memory import LiveBytes
from training import models

ADAMW = {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": 0.01}}


def config(stage: int, accumulation: int = 1, **more: Any) -> dict[str, Any]:
    """Return a config for the test models; ``zero`` extends the ZeRO block."""
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0, **more.pop("zero", {})}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": accumulation,
        "optimizer": ADAMW,
        "zero_optimization": zero,
        **more,
    }


def window(engine: Any, step: int) -> float:
    """Train one accumulation window; return the mean loss over micro batches and ranks."""
    total = torch.zeros((), dtype=torch.float64)
    for micro in range(engine.gradient_accumulation_steps()):
        loss = engine(models.batch(step, micro, dist.get_rank()))
        engine.backward(loss)
        engine.step()
        total += loss.detach().double().cpu()
    dist.all_reduce(total)
    return (total / engine.gradient_accumulation_steps() / dist.get_world_size()).item()


def losses(
    config: dict[str, Any], steps: int = 12, client: str | None = None, **options: Any
) -> list[float]:
    """Train; ``client`` names an optimizer class of torch.optim built before initialize."""
    model = models.tied()
    if client is not None:
        kind = getattr(torch.optim, client)
        options["optimizer"] = kind(model.parameters(), lr=3e-3, weight_decay=0.01)
    engine, *_ = dsengine.initialize(model=model, config=config, **options)
    curve = [window(engine, step) for step in range(steps)]
    engine.destroy()
    gc.collect()
    return curve


def resumed(config: dict[str, Any], folder: str, before: int = 6, after: int = 6) -> list[Any]:
    """Return the losses of an uninterrupted run and of one saved and resumed."""
    uninterrupted = losses(config, before + after)
    engine, *_ = dsengine.initialize(model=models.tied(), config=config)
    first = [window(engine, step) for step in range(before)]
    engine.save_checkpoint(folder, client_state={"epoch": 7})
    engine.destroy()
    engine, *_ = dsengine.initialize(model=models.tied(seed=1), config=config)
    path, client_state = engine.load_checkpoint(folder)
    second = [window(engine, before + step) for step in range(after)]
    counters = (engine.global_steps, engine.micro_steps, engine.global_samples)
    engine.destroy()
    return [uninterrupted, first + second, path, client_state, counters]


def growth(config: dict[str, Any]) -> tuple[int, int]:
    """Return what ``grown`` does for the tied model."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=config)
    return grown(engine, window)


def grown(
    engine: Any, window: Callable[[Any, int], Any], before: int = 10, windows: int = 30
) -> tuple[int, int]:
    """Return how many Python objects and bytes of tensors more exist after ``windows`` windows."""

    def train(steps: int) -> None:
        for step in range(steps):
            window(engine, step)
        gc.collect()

    train(before)
    objects = len(gc.get_objects())
    train(windows)
    objects = len(gc.get_objects()) - objects
    live = LiveBytes(torch.device("cpu"))
    live.start("before")
    train(1)
    live.enter("after")
    train(windows)
    live.stop()
    engine.destroy()
    return objects, live.at_exit["after"] - live.at_exit["before"]


def client_states(config: dict[str, Any], folder: str, files: str) -> list[dict[str, Any]]:
    """Return the client state after a first load, and after saving and loading it again."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=config)
    engine.checkpointer().for_deepspeed = files == "deepspeed"
    loaded: list[dict[str, Any]] = []
    client_state: dict[str, Any] = {"epoch": 7}
    for step in range(2):
        window(engine, step)
        engine.save_checkpoint(folder, client_state=client_state)
        client_state = engine.load_checkpoint(folder)[1] or {}
        loaded.append(client_state)
    engine.destroy()
    return loaded


def between_steps(config: dict[str, Any]) -> dict[str, Any]:
    """Return what rank 0 alone can do between steps, below stage 3."""
    model = models.tied()
    engine, *_ = dsengine.initialize(model=model, config=config)
    window(engine, 0)
    seen: dict[str, Any] = {}
    if dist.get_rank() == 0:
        state = engine.module.state_dict()
        seen["shapes"] = {name: tuple(tensor.shape) for name, tensor in state.items()}
        seen["plain"] = all(type(tensor) is torch.Tensor for tensor in state.values())
        scale = engine.module.get_parameter("scale")
        inputs = torch.ones(1, models.WIDTH, dtype=scale.dtype, device=scale.device)
        seen["block"] = engine.module.get_submodule("blocks.0")(inputs).shape[-1]
        seen["data"] = engine.module.get_parameter("head.weight").data.sum().item()
        seen["sum"] = float(sum(tensor.double().sum() for tensor in state.values()))
    dist.barrier()
    follows = window(engine, 1)
    engine.destroy()
    return {"expected": {n: tuple(t.shape) for n, t in models.tied().state_dict().items()}} | {
        "seen": seen,
        "follows": follows,
    }


def saved_in_both_forms(config: dict[str, Any], folder: str) -> dict[str, Any]:
    """Save in both formats and resume from DeepSpeed's in another engine."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=config)
    for step in range(3):
        window(engine, step)
    engine.save_checkpoint(f"{folder}/ours", client_state={"epoch": 7})
    engine.checkpointer().for_deepspeed = True
    for _ in range(2):  # the second replaces the first
        engine.save_checkpoint(f"{folder}/theirs", client_state={"epoch": 7})
    expected = [window(engine, 3 + step) for step in range(3)]
    engine.destroy()
    engine, *_ = dsengine.initialize(model=models.tied(seed=5), config=config)
    _, client = engine.load_checkpoint(f"{folder}/theirs")
    curve = [window(engine, 3 + step) for step in range(3)]
    engine.destroy()
    return {"expected": expected, "losses": curve, "client": client}


def saved_midway(
    config: dict[str, Any], folder: str, before: int = 3, after: int = 3
) -> dict[str, Any]:
    """Save after some steps and train on; return what a resumed run must reach."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=config)
    for step in range(before):
        window(engine, step)
    engine.save_checkpoint(folder, client_state={"epoch": 7})
    counted = (engine.global_steps, engine.global_samples)
    curve = [window(engine, before + step) for step in range(after)]
    rate = engine.get_lr()[0]
    engine.destroy()
    return {"losses": curve, "rate": rate, "client": {"epoch": 7}, "counted": counted}

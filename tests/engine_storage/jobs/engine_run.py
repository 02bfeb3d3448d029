"""Jobs that initialize, train, save, export and resume, as a user's script does."""

import threading
from typing import Any

import torch
import torch.distributed as dist
from dsengine.zero import GatheredParameters, Init

import dsengine
from engine_storage.jobs.toy import ToyModel, batch_of, loss_of, mean
from suite.limits import scaled


def config(stage: int, **options: Any) -> dict[str, Any]:
    return {
        "train_batch_size": 12,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "weight_decay": 0.1}},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_num_steps": 6, "warmup_max_lr": 0.02, "warmup_min_lr": 0.0},
        },
        "zero_optimization": {
            "stage": stage,
            "stage3_gather_16bit_weights_on_model_save": True,
            "stage3_param_persistence_threshold": 0,
        },
    } | options


def train(engine: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = loss_of(engine, batch_of(engine.global_steps))
        engine.backward(loss)
        engine.step()
        losses.append(mean(loss.item()))
    return losses


def started(stage: int, seed: int, under_init: bool = False, **options: Any) -> Any:
    torch.manual_seed(seed)
    with Init(enabled=under_init):
        model = ToyModel()
    return dsengine.initialize(model=model, config=config(stage, **options))[0]


def saved(directory: str) -> dict[str, Any]:
    """Train at stage 3, save, export and continue; then gather a parameter and change it."""
    engine = started(3, 5)
    train(engine, 7)
    engine.save_checkpoint(directory, client_state={"epoch": 2})
    engine.save_16bit_model(directory + "/export")
    result: dict[str, Any] = {"losses": train(engine, 10)}
    weight = engine.module.blocks[0].up.weight
    with GatheredParameters(weight, modifier_rank=0):
        result["gathered"] = list(weight.data.shape)
        if dist.get_rank() == 0:
            torch.nn.init.zeros_(weight)
    result["changed"] = bool((weight.detach().full_tensor() == 0).all())
    engine.destroy()
    return result


def resumed(directory: str, stage: int) -> dict[str, Any]:
    """Resume from the checkpoint, with a differently initialized model."""
    engine = started(stage, 6)
    path, client = engine.load_checkpoint(directory)
    result = {"losses": train(engine, 10), "client": client, "path": path}
    result |= {"steps": engine.global_steps, "calls": int(engine.module.calls)}
    engine.destroy()
    return result


def under_init(stage: int) -> list[list[float]]:
    """Return the losses of a model built normally, and of the same model built under zero.Init."""
    curves = []
    for partitioned in (False, True):
        engine = started(stage, 5, under_init=partitioned)
        curves.append(train(engine, 4))
        engine.destroy()
    return curves


def files_while_saving(directory: str, stage: int) -> list[bool]:
    """Load and save directly after asynchronous saves, which a rank does not write before."""
    engine = started(stage, seed=1)
    checkpointer = engine.checkpointer()
    checkpointer.asynchronous = True
    write, wait, is_waited_for = checkpointer._write, checkpointer.wait, threading.Event()

    def write_late(*arguments: Any) -> Any:
        if dist.get_rank() == 1 and not is_waited_for.wait(scaled(60)):
            raise TimeoutError("no operation waits for the save")
        is_waited_for.clear()
        return write(*arguments)

    def wait_for_write() -> None:
        if checkpointer._pending is not None:
            is_waited_for.set()
        wait()

    checkpointer._write, checkpointer.wait = write_late, wait_for_write
    engine.save_checkpoint(directory, tag="first")
    loaded, _ = engine.load_checkpoint(directory)
    engine.save_checkpoint(directory, tag="second")
    exported = engine.save_16bit_model(f"{directory}/weights")
    engine.save_checkpoint(directory, tag="third")
    engine.load_pretrained(f"{directory}/weights")
    engine.destroy()
    return [loaded == f"{directory}/first", exported]

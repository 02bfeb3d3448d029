"""A user's script: initialize, train, save, export; then the same from other beginnings."""

from typing import Any

import torch
import torch.distributed as dist
from dsengine.zero import GatheredParameters, Init
from toy import ToyModel, batch_of, finish, loss_of, mean, start, world_size

import dsengine


def config(stage: int, **more: Any) -> dict[str, Any]:
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
    } | more


def train(engine: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = loss_of(engine, batch_of(engine.global_steps))
        engine.backward(loss)
        engine.step()
        losses.append(mean(loss.item()))
    return losses


def started(stage: int, seed: int, under_init: bool = False, **more: Any) -> Any:
    torch.manual_seed(seed)
    with Init(enabled=under_init):
        model = ToyModel()
    return dsengine.initialize(model=model, config=config(stage, **more))[0]


def main() -> None:
    options = start()
    said: dict[str, Any] = {"world": world_size()}
    if options["save"]:
        engine = started(3, 5)
        train(engine, 7)
        engine.save_checkpoint(options["dir"], client_state={"epoch": 2})
        engine.save_16bit_model(options["dir"] + "/export")
        said["losses"] = train(engine, 10)
        weight = engine.module.blocks[0].up.weight
        with GatheredParameters(weight, modifier_rank=0):
            said["gathered"] = list(weight.data.shape)
            if dist.get_rank() == 0:
                torch.nn.init.zeros_(weight)
        said["changed"] = bool((weight.detach().full_tensor() == 0).all())
    for stage in options.get("stages", []):
        engine = started(stage, 6)
        path, client = engine.load_checkpoint(options["dir"])
        said[f"{stage}"] = train(engine, 10)
        said["client"], said["path"], said["steps"] = client, path, engine.global_steps
        said["calls"] = int(engine.module.calls)
    for stage in options.get("init", []):
        plain, under_init = started(stage, 5), started(stage, 5, under_init=True)
        said[f"init {stage}"] = [train(plain, 4), train(under_init, 4)]
    finish(options, said)


if __name__ == "__main__":
    main()

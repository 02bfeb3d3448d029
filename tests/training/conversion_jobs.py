"""Training with the module that ``dsconfig convert --to fsdp2`` writes."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training import models


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch)


def losses(text: str, steps: int) -> list[float]:
    """Train with the text of a module; return the mean loss of each step over ranks."""
    module: dict[str, Any] = {"__name__": "converted"}
    exec(compile(text, "converted.py", "exec"), module)
    model = module["shard"](models.tied())
    optimizer = module["make_optimizer"](model)
    scheduler, scaler = module["make_scheduler"](optimizer), module["make_scaler"]()
    found: list[float] = []
    for step in range(steps):
        micros = range(module["ACCUMULATION"])
        batches = [models.batch(step, micro, dist.get_rank()) for micro in micros]
        loss = module["step"](model, optimizer, scheduler, scaler, batches, loss_of)
        total = torch.tensor(loss, dtype=torch.float64)
        dist.all_reduce(total)
        found.append(total.item() / dist.get_world_size())
    return found

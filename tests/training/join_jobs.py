"""Jobs with uneven data per rank."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import dsengine
from dsengine.loop.accumulating import Until
from training import models


def own_batches(count: int, rank: int) -> Iterator[Tensor]:
    for number in range(count):
        yield models.batch(number, 0, rank)


def trained(
    config: dict[str, Any], counts: list[int], until: Until = "last", direct: bool = False
) -> tuple[list[bool], list[Tensor]]:
    """Return which of this rank's batches were new, and the final weights."""
    engine, *_ = dsengine.initialize(model=models.tied(), config=config)
    rank = dist.get_rank()
    known: list[Tensor] = []
    is_new = []
    for batch in engine.join(own_batches(counts[rank], rank), until=until):
        is_new.append(not any(batch is old for old in known))
        known.append(batch)
        loss = engine(batch)
        if direct:
            loss.backward()
        else:
            engine.backward(loss)
        engine.step()
    assert engine._windows.loss_weight == 1.0
    return is_new, _weights(engine)


def reference(
    config: dict[str, Any], counts: list[int], accumulation: int
) -> tuple[list[bool], list[Tensor]]:
    """Return the same computed in one process: the mean over the ranks that have a batch."""
    model = models.tied()
    optimizer = torch.optim.SGD(model.parameters(), **config["optimizer"]["params"])
    for number in range(max(counts)):
        ranks = [rank for rank, count in enumerate(counts) if number < count]
        losses = [model(models.batch(number, 0, rank)) for rank in ranks]
        (torch.stack(losses).sum() / len(losses) / accumulation).backward()
        if (number + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    return [], [parameter.detach() for parameter in model.parameters()]


def refused(config: dict[str, Any]) -> list[str]:
    engine, *_ = dsengine.initialize(model=models.tied(), config=config)
    with pytest.raises(ValueError) as nothing_here:
        list(engine.join(own_batches(dist.get_rank(), 0)))
    with pytest.raises(ValueError) as unknown:
        engine.join([], until="middle")  # pyright: ignore[reportArgumentType]
    assert list(engine.join([])) == []
    return [str(nothing_here.value), str(unknown.value)]


def _weights(engine: Any) -> list[Tensor]:
    with dsengine.zero.GatheredParameters(list(engine.module.parameters())):
        weights = [p.detach().clone() for p in engine.module.parameters()]
    engine.destroy()
    return weights
